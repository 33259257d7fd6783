"""Filters that the published recipe does not have, off unless the configuration names them, and what they read.

INPUTS   {data}/raw/train-*.parquet, {data}/filters/*.tsv, the evaluation set
OUTPUTS  {data}/filters/overlap.tsv, {data}/overlap.{tsv,json}
"""


rule find_overlap:
    """Find the repositories and files that the release shares with the evaluation set."""
    input:
        shards=RAW,
        evaluation=EVALUATION_SET,
    output:
        table=f"{DATA}/overlap.tsv",
        tasks=f"{DATA}/overlap.json",
    log:
        f"{LOGS}/find_overlap.log",
    resources:
        machine="any",
    message:
        "find what the release shares with the evaluation set"
    shell:
        "python scripts/funnel/find_overlap.py --shards {input.shards:q} --evaluation {input.evaluation:q}"
        " --table {output.table:q} --tasks {output.tasks:q} 2>&1 | tee -i {log:q}"


rule filter_overlap:
    """Drop rows that the evaluation set is about too."""
    input:
        shards=RAW,
        previous=lambda wildcards: filter_before("overlap"),
        overlap=rules.find_overlap.output.tasks,
    output:
        f"{DATA}/filters/overlap.tsv",
    log:
        f"{LOGS}/filter_overlap.log",
    resources:
        machine="any",
    params:
        level=config["filters"]["overlap"],
    message:
        "filter: overlap with the evaluation set"
    shell:
        "python scripts/funnel/filter_overlap.py --shards {input.shards:q} --previous {input.previous:q}"
        " --overlap {input.overlap:q} --level {params.level} --out {output:q} 2>&1 | tee -i {log:q}"


rule describe_data:
    """Write the page that says what the funnel read, dropped and left."""
    input:
        shards=RAW,
        release=rules.check_release.output,
        readings=rules.filter_branch.output.readings,
        funnel=rules.collect_candidates.output.funnel,
        candidates=rules.collect_candidates.output.candidates,
        overlap=rules.find_overlap.output.table,
    output:
        f"{DATA}/README.md",
    log:
        f"{LOGS}/describe_data.log",
    resources:
        machine="any",
    params:
        data=DATA,
        source=" at revision ".join(
            filter(None, (CONFIG.release.dataset, CONFIG.release.revision))
        ),
    message:
        "describe the data"
    shell:
        "python scripts/funnel/describe_data.py --source {params.source:q} --shards {input.shards:q}"
        " --data {params.data:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule prepare_data:
    """The data funnel: raw release, filters, ledger, candidates, and a page that says what came of it."""
    input:
        rules.collect_candidates.output,
        rules.describe_data.output,
    localrule: True
