"""Filters that the published recipe does not have, off unless the configuration names them, and what they read.

INPUTS   {data}/raw/train-*.parquet, {data}/filters/*.tsv, the evaluation set
OUTPUTS  {data}/filters/{bug_in_tests,overlap}.tsv, {data}/overlap.{tsv,json}
"""


rule filter_bug_in_tests:
    """Drop rows whose bug lies in a file that grades them."""
    input:
        shards=RAW,
        previous=lambda wildcards: filter_before("bug_in_tests"),
    output:
        f"{DATA}/filters/bug_in_tests.tsv",
    log:
        f"{LOGS}/filter_bug_in_tests.log",
    resources:
        machine="any",
    message:
        "filter: bug in a test file"
    shell:
        "python scripts/filter_bug_in_tests.py --shards {input.shards:q} --previous {input.previous:q}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


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
        "python scripts/find_overlap.py --shards {input.shards:q} --evaluation {input.evaluation:q}"
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
        "python scripts/filter_overlap.py --shards {input.shards:q} --previous {input.previous:q}"
        " --overlap {input.overlap:q} --level {params.level} --out {output:q} 2>&1 | tee -i {log:q}"


rule prepare_data:
    """The data funnel: raw release, filters, ledger, candidates, overlap with the evaluation set."""
    input:
        rules.collect_candidates.output,
        rules.find_overlap.output,
    localrule: True
