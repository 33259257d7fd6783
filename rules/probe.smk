"""How difficult each candidate is for the base policy, and which ones training uses.

INPUTS   {data}/candidates.parquet, images, the base policy
OUTPUTS  {data}/probe/log{.jsonl,.settings.json}, {data}/probe/selection{.tsv,.json}, {data}/split.json,
         {data}/{train_dataset_mixed,val_dataset_filtered}.jsonl
"""

from lightning_smith.config.stages import probe_stage, select_stage


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
        gradings=CONFIG.agent.gradings,
        rollouts=32,
    params:
        settings=settings(probe_stage, MANIFESTS),
    message:
        "probe the candidates"
    shell:
        "python scripts/probe/probe.py --settings {params.settings:q} --tasks {input.candidates:q}"
        " --gradings {resources.gradings} --max-rollouts {resources.rollouts} --out {output.log:q}"
        " 2>&1 | tee -i {log:q}"


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
        settings=settings(select_stage),
    message:
        "select tasks by difficulty"
    shell:
        "python scripts/probe/select_by_difficulty.py --settings {params.settings:q} --log {input:q}"
        " --out {output.table:q} --summary {output.summary:q} 2>&1 | tee -i {log:q}"


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
        seed=CONFIG.selection.seed,
    message:
        "split into training and validation"
    shell:
        "python scripts/probe/split.py --selection {input.selection:q} --tasks {input.candidates:q}"
        " --seed {params.seed} --train {output.train:q} --val {output.val:q}"
        " --summary {output.summary:q} 2>&1 | tee -i {log:q}"
