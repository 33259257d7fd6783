"""Predictions of the base and of every checkpoint on held-out tasks, and their official grading.

INPUTS   {data}/heldout.parquet or {data}/verified.parquet, images, {results}/export/{recipe}/step_{step}.json (step 0: the policy before training)
OUTPUTS  {results}/eval/{recipe}/step_{step}/{counts.json,verdicts.jsonl,sample_*/{preds.jsonl,report.json}}
"""

from lightning_smith.config.stages import grade_stage, predict_stage
from lightning_smith.miniature.policy.precision import ROLLOUT_DTYPES

SAMPLES = list(range(CONFIG.evaluation.samples))
EVALUATED = [(name, step) for name in RECIPES for step in RECIPES[name]["evaluate"]]
# The official grading in bubblewrap needs the repositories on disk.
GRADED_IN_BWRAP = BACKENDS["harness"] == "bwrap"
GRADED_IMAGES = (local_images if GRADED_IN_BWRAP else task_images)("heldout")
EVALUATION = f"{RESULTS}/eval/{{recipe}}/step_{{step}}"


def export_at(wildcards):
    """The export's manifest; nothing at step 0."""
    step = int(wildcards.step)
    return [f"{RESULTS}/export/{wildcards.recipe}/step_{step}.json"] if step else []


rule predict:
    """Roll the policy out on the held-out tasks and write predictions."""
    input:
        export=export_at,
        tasks=EVALUATION_SET,
        images=task_images("heldout"),
        table=table_of_images("verified"),
        environments=ROLLOUT_ENVIRONMENTS,
    output:
        run=f"{EVALUATION}/run.json",
        predictions=[f"{EVALUATION}/sample_{sample}/preds.jsonl" for sample in SAMPLES],
    log:
        f"{LOGS}/predict/{{recipe}}_{{step}}.log",
    benchmark:
        f"{WORK}/benchmarks/predict/{{recipe}}_{{step}}.tsv"
    threads: 2
    resources:
        machine="A",
        rollouts=32,
    params:
        settings=lambda wildcards: settings(
            predict_stage, wildcards.recipe, MANIFESTS, ROLLOUT_DTYPES
        ),
        export=lambda wildcards: [
            word
            for path in export_at(wildcards)
            for word in ("--export-manifest", path)
        ],
        out=lambda wildcards, output: Path(output.run).parent,
    message:
        "evaluate {wildcards.recipe} step {wildcards.step}: predictions"
    shell:
        "python scripts/evaluate/predict.py --settings {params.settings:q} --tasks {input.tasks:q}"
        " --step {wildcards.step} {params.export:q} --max-rollouts {resources.rollouts} --out {params.out:q}"
        " 2>&1 | tee -i {log:q}"


rule grade:
    """Grade the predictions of one checkpoint with swebench's own functions."""
    input:
        run=rules.predict.output.run,
        predictions=rules.predict.output.predictions,
        tasks=EVALUATION_SET,
        images=GRADED_IMAGES,
        environments=GRADE_ENVIRONMENTS,
    output:
        counts=f"{EVALUATION}/counts.json",
        verdicts=f"{EVALUATION}/verdicts.jsonl",
        reports=[f"{EVALUATION}/sample_{sample}/report.json" for sample in SAMPLES],
    log:
        f"{LOGS}/grade/{{recipe}}_{{step}}.log",
    benchmark:
        f"{WORK}/benchmarks/grade/{{recipe}}_{{step}}.tsv"
    threads: 2
    resources:
        machine="A",
    params:
        settings=settings(grade_stage),
        folder=lambda wildcards, input: Path(input.run).parent,
    message:
        "evaluate {wildcards.recipe} step {wildcards.step}: official grading"
    shell:
        "uv run --frozen --project envs/eval python scripts/evaluate/grade.py --settings {params.settings:q}"
        " --tasks {input.tasks:q} --predictions {params.folder:q} --workers {threads} 2>&1 | tee -i {log:q}"


rule grade_control:
    """Grade the gold patches, which must all resolve, or no patch at all, which must resolve none."""
    input:
        tasks=EVALUATION_SET,
        images=GRADED_IMAGES,
        table=table_of_images("verified"),
        environments=GRADE_ENVIRONMENTS,
    output:
        f"{RESULTS}/eval/control_{{kind}}.json",
    log:
        f"{LOGS}/grade/control_{{kind}}.log",
    benchmark:
        f"{WORK}/benchmarks/grade_control/{{kind}}.tsv"
    wildcard_constraints:
        kind="gold|empty",
    threads: 2
    resources:
        machine="A",
    params:
        settings=settings(grade_stage),
    message:
        "control of the grading: {wildcards.kind} patches"
    shell:
        "uv run --frozen --project envs/eval python scripts/evaluate/grade.py --settings {params.settings:q}"
        " --tasks {input.tasks:q} --control {wildcards.kind} --workers {threads} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


rule evaluate_verified:
    """Base and every checkpoint, graded on the held-out tasks."""
    input:
        [
            f"{RESULTS}/eval/{recipe}/step_{step}/counts.json"
            for recipe, step in EVALUATED
        ],
    localrule: True
