"""Filters that certify tasks, off unless the configuration names them: can the harness grade them, and do they hold.

INPUTS   {data}/raw/train-*.parquet, {data}/filters/*.tsv, images
OUTPUTS  {data}/profiles.json, {data}/odd_test_ids.jsonl, {data}/validation/{part}.jsonl,
         {data}/filters/{gradable,validated}.tsv
"""

from lightning_smith.config.stages import validate_stage

IN_SMITH = "uv run --frozen --project envs/smith " if SMITH else ""
# Where the repositories say themselves how their tests are run.
TOLD_BY = local_images("train") if BACKENDS["tests"] == "image" else []
PROFILES_OF = f"{WORK}/images" if BACKENDS["tests"] == "image" else "smith"
VALIDATION_PARTS = list(range(CONFIG.validation.parts))


rule list_profiles:
    """Write how the tests of each repository of the release are run and read."""
    input:
        shards=RAW,
        images=TOLD_BY,
        environment=SMITH,
    output:
        f"{DATA}/profiles.json",
    log:
        f"{LOGS}/list_profiles.log",
    resources:
        machine="any",
    params:
        run=IN_SMITH,
        source=PROFILES_OF,
    message:
        "list the profiles of the release's repositories"
    shell:
        "{params.run}python scripts/funnel/list_profiles.py --shards {input.shards:q} --source {params.source}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


rule filter_gradable:
    """Drop rows that the harness cannot grade."""
    input:
        shards=RAW,
        previous=lambda wildcards: filter_before("gradable"),
        profiles=rules.list_profiles.output,
        images=TOLD_BY,
        environment=SMITH,
    output:
        decisions=f"{DATA}/filters/gradable.tsv",
        odd=f"{DATA}/odd_test_ids.jsonl",
    log:
        f"{LOGS}/filter_gradable.log",
    resources:
        machine="any",
    params:
        run=IN_SMITH,
        source=PROFILES_OF,
    message:
        "filter: gradable by the harness"
    shell:
        "{params.run}python scripts/funnel/filter_gradable.py --shards {input.shards:q} --source {params.source}"
        " --previous {input.previous:q} --profiles {input.profiles:q} --odd {output.odd:q}"
        " --out {output.decisions:q} 2>&1 | tee -i {log:q}"


rule validate_tasks:
    """Test the gold patch, and no patch at all, of a part of the tasks, several times over."""
    input:
        shards=RAW,
        previous=lambda wildcards: filter_before("validated"),
        images=task_images("train"),
        environments=TESTBED + SMITH,
    output:
        f"{DATA}/validation/{{part}}.jsonl",
    log:
        f"{LOGS}/validate_tasks/{{part}}.log",
    benchmark:
        f"{WORK}/benchmarks/validate_tasks/{{part}}.tsv"
    wildcard_constraints:
        part=r"\d+",
    threads: 2
    resources:
        machine="A",
    params:
        settings=settings(validate_stage),
        parts=len(VALIDATION_PARTS),
    message:
        "validate tasks, part {wildcards.part} of {params.parts}"
    shell:
        "python scripts/funnel/validate_tasks.py --settings {params.settings:q} --shards {input.shards:q}"
        " --previous {input.previous:q} --part {wildcards.part} --workers {threads} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


rule filter_validated:
    """Drop rows whose gold patch does not pass, whose bug does not fail, or whose test runs disagree."""
    input:
        shards=RAW,
        previous=lambda wildcards: filter_before("validated"),
        logs=[f"{DATA}/validation/{part}.jsonl" for part in VALIDATION_PARTS],
    output:
        f"{DATA}/filters/validated.tsv",
    log:
        f"{LOGS}/filter_validated.log",
    resources:
        machine="any",
    params:
        runs=CONFIG.validation.runs,
    message:
        "filter: gold patch passes, empty patch does not"
    shell:
        "python scripts/funnel/filter_validated.py --shards {input.shards:q} --previous {input.previous:q}"
        " --logs {input.logs:q} --runs {params.runs} --out {output:q} 2>&1 | tee -i {log:q}"
