"""How difficult each candidate is for the base policy, and which ones training uses.

INPUTS   {data}/candidates.parquet, images, the base policy
OUTPUTS  {data}/probe/log{.jsonl,.settings.json}, {data}/probe/selection{.tsv,.json}, {data}/split.json,
         {data}/{train_dataset_mixed,val_dataset_filtered}.jsonl
"""


rule probe:
    """Roll the base policy out a few times on each candidate, and log every outcome."""
    input:
        candidates=rules.collect_candidates.output.candidates,
        images=task_images("train"),
        references=REFERENCES,
        environments=ROLLOUT_ENVIRONMENTS + GRADING_ENVIRONMENTS,
    output:
        log=f"{DATA}/probe/log.jsonl",
        settings=f"{DATA}/probe/log.settings.json",
    log:
        f"{LOGS}/probe/probe.log",
    benchmark:
        f"{WORK}/benchmarks/probe.tsv"
    threads: 2
    resources:
        machine="A",
        gradings=config["agent"]["gradings"],
    params:
        work=WORK,
        logs=LOGS,
        model=config["policies"][config["probe"]["policy"]]["model"],
        name=config["probe"]["policy"],
        context=config["policies"][config["probe"]["policy"]]["max_model_len"],
        tasks=config["probe"]["tasks"] or 0,
        samples=config["probe"]["samples"],
        temperature=config["probe"]["temperature"],
        seed=config["probe"]["seed"],
        max_invalid=config["probe"]["max_invalid_fraction"],
        agent=agent_settings,
        workspace=BACKENDS["workspace"],
        manifests=MANIFESTS,
        references="--references" if REFERENCES else "",
        tests=BACKENDS["tests"],
    message:
        "probe the candidates"
    shell:
        "python scripts/probe/probe.py --tasks {input.candidates:q} --count {params.tasks} --samples {params.samples}"
        " --seed {params.seed} --model {params.model:q} --model-name {params.name} --context {params.context} --temperature {params.temperature}"
        " --workspace {params.workspace} --tests {params.tests} --images {params.work}/images {params.manifests} {params.references} {input.references:q} --work {params.work}/probe --logs {params.logs}/probe"
        " --settings {params.agent:q} --gradings {resources.gradings} --max-invalid-fraction {params.max_invalid} --out {output.log:q} 2>&1 | tee -i {log:q}"


rule select_by_difficulty:
    """Choose training and validation tasks from the probe log alone."""
    input:
        rules.probe.output.log,
    output:
        table=f"{DATA}/probe/selection.tsv",
        summary=f"{DATA}/probe/selection.json",
    log:
        f"{LOGS}/select_by_difficulty.log",
    resources:
        machine="any",
    params:
        samples=config["probe"]["samples"],
        mixed=config["selection"]["mixed_limit"] or 0,
        failed=config["selection"]["all_failed_sample"],
        validation=config["selection"]["validation_tasks"],
        pool=config["selection"]["validation_pool"],
        max_lost=config["probe"]["max_invalid_fraction"],
        seed=config["selection"]["seed"],
    message:
        "select tasks by difficulty"
    shell:
        "python scripts/probe/select_by_difficulty.py --log {input:q} --samples {params.samples} --mixed-limit {params.mixed}"
        " --all-failed {params.failed} --validation {params.validation} --validation-pool {params.pool} --seed {params.seed}"
        " --max-lost-fraction {params.max_lost} --out {output.table:q} --summary {output.summary:q}"
        " 2>&1 | tee -i {log:q}"


rule split:
    """Write both sides, without training tasks that share a change with a validation task."""
    input:
        selection=rules.select_by_difficulty.output.table,
        candidates=rules.collect_candidates.output.candidates,
    output:
        train=f"{DATA}/train_dataset_mixed.jsonl",
        val=f"{DATA}/val_dataset_filtered.jsonl",
        summary=f"{DATA}/split.json",
    log:
        f"{LOGS}/split.log",
    resources:
        machine="any",
    params:
        seed=config["selection"]["seed"],
    message:
        "split into training and validation"
    shell:
        "python scripts/probe/split.py --selection {input.selection:q} --tasks {input.candidates:q}"
        " --seed {params.seed} --train {output.train:q} --val {output.val:q}"
        " --summary {output.summary:q} 2>&1 | tee -i {log:q}"
