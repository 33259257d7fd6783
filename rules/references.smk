"""What right code does with the altered tests of each image, by which graders tell forged results.

INPUTS   {data}/candidates.parquet, images
OUTPUTS  {data}/references.jsonl.gz
"""

from lightning_smith.config.stages import references_of, references_stage


rule find_references:
    """Find out what right code does with the altered tests of each image's tasks, in two runs of each variant."""
    input:
        candidates=rules.collect_candidates.output.candidates,
        images=task_images("train"),
        environments=TESTBED + SMITH,
    output:
        f"{DATA}/references.jsonl.gz",
    log:
        f"{LOGS}/find_references.log",
    benchmark:
        f"{WORK}/benchmarks/find_references.tsv"
    threads: 2
    resources:
        machine="A",
    params:
        settings=settings(references_stage),
    message:
        "test right code with altered tests"
    shell:
        "python scripts/probe/find_references.py --settings {params.settings:q} --tasks {input.candidates:q}"
        " --workers {threads} --out {output:q} 2>&1 | tee -i {log:q}"


REFERENCES = [str(path)] if (path := references_of(CONFIG)) else []
