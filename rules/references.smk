"""What right code does with the altered tests of each image, by which graders tell forged results.

INPUTS   {data}/candidates.parquet, images
OUTPUTS  {data}/references.jsonl.gz
"""


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
        work=WORK,
        workspace=BACKENDS["workspace"],
        tests=BACKENDS["tests"],
        # Of the tests of all tasks of an image in one run.
        timeout_s=10 * config["agent"]["grading_timeout_s"],
    message:
        "test right code with altered tests"
    shell:
        "python scripts/probe/find_references.py --tasks {input.candidates:q} --images {params.work}/images"
        " --workspace {params.workspace} --tests {params.tests} --timeout {params.timeout_s} --workers {threads}"
        " --work {params.work}/references --out {output:q} 2>&1 | tee -i {log:q}"


REFERENCES = {"find": rules.find_references.output, None: []}.get(
    config["references"], config["references"]
)
