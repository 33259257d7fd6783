"""Predictions of the base and of every checkpoint on held-out tasks, and their official grading.

INPUTS   {data}/heldout.parquet or {data}/verified.parquet, images, {results}/export/{recipe}/step_{step}.json (step 0: the policy before training)
OUTPUTS  {results}/eval/{recipe}/step_{step}/{counts.json,verdicts.jsonl,sample_*/{preds.jsonl,report.json}}
"""

SAMPLES = list(range(config["evaluation"]["samples"]))
EVALUATED = [(name, step) for name in RECIPES for step in RECIPES[name]["evaluate"]]
# The official grading in bubblewrap needs the repositories on disk.
GRADED_IN_BWRAP = BACKENDS["harness"] == "bwrap"
GRADED_IMAGES = (local_images if GRADED_IN_BWRAP else task_images)("heldout")
EVALUATION = f"{RESULTS}/eval/{{recipe}}/step_{{step}}"


def model_at(wildcards):
    """The folder of the policy at a step: where it starts from, or the export."""
    if int(wildcards.step) == 0:
        return policy_of(wildcards.recipe)["model"]
    return f"{WORK}/export/{wildcards.recipe}/step_{wildcards.step}"


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
    params:
        work=WORK,
        logs=LOGS,
        model=model_at,
        manifest=lambda wildcards: [
            word
            for path in export_at(wildcards)
            for word in ("--export-manifest", path)
        ],
        policy=lambda wildcards: RECIPES[wildcards.recipe]["policy"],
        context=lambda wildcards: policy_of(wildcards.recipe)["max_model_len"],
        dtype=lambda wildcards: ROLLOUT_DTYPES[policy_of(wildcards.recipe)["kind"]],
        dataset=config["evaluation"]["dataset"],
        instances=config["evaluation"]["instances"],
        samples=config["evaluation"]["samples"],
        temperature=config["evaluation"]["temperature"],
        seed=config["evaluation"]["seed"],
        agent=agent_settings,
        workspace=BACKENDS["workspace"],
        manifests=MANIFESTS,
        out=lambda wildcards, output: Path(output.run).parent,
    message:
        "evaluate {wildcards.recipe} step {wildcards.step}: predictions"
    shell:
        "python scripts/evaluate/predict.py --tasks {input.tasks:q} --dataset {params.dataset:q} --instances {params.instances}"
        " --samples {params.samples} --seed {params.seed} --recipe {wildcards.recipe} --step {wildcards.step}"
        " --model {params.model:q} {params.manifest:q} --model-name {params.policy} --dtype {params.dtype} --context {params.context}"
        " --temperature {params.temperature} --workspace {params.workspace} --images {params.work}/images {params.manifests} --settings {params.agent:q}"
        " --work {params.work}/predict/{wildcards.recipe}/step_{wildcards.step} --logs {params.logs}/predict/{wildcards.recipe}_{wildcards.step} --out {params.out:q} 2>&1 | tee -i {log:q}"


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
        work=WORK,
        harness=BACKENDS["harness"],
        timeout_s=config["evaluation"]["harness_timeout_s"],
        retest=config["evaluation"]["retest_fraction"],
        folder=lambda wildcards, input: Path(input.run).parent,
    message:
        "evaluate {wildcards.recipe} step {wildcards.step}: official grading"
    shell:
        "uv run --frozen --project envs/eval python scripts/evaluate/grade.py --tasks {input.tasks:q} --images {params.work}/images --harness {params.harness}"
        " --testbed-python envs/testbed/.venv/bin/python --work {params.work}/grade --timeout {params.timeout_s} --retest-fraction {params.retest}"
        " --predictions {params.folder:q} 2>&1 | tee -i {log:q}"


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
        work=WORK,
        harness=BACKENDS["harness"],
        instances=config["evaluation"]["instances"],
        seed=config["evaluation"]["seed"],
        timeout_s=config["evaluation"]["harness_timeout_s"],
        retest=config["evaluation"]["retest_fraction"],
    message:
        "control of the grading: {wildcards.kind} patches"
    shell:
        "uv run --frozen --project envs/eval python scripts/evaluate/grade.py --tasks {input.tasks:q} --images {params.work}/images --harness {params.harness}"
        " --testbed-python envs/testbed/.venv/bin/python --work {params.work}/grade --timeout {params.timeout_s} --retest-fraction {params.retest}"
        " --control {wildcards.kind} --instances {params.instances} --seed {params.seed} --out {output:q} 2>&1 | tee -i {log:q}"


rule evaluate_verified:
    """Base and every checkpoint, graded on the held-out tasks."""
    input:
        [
            f"{RESULTS}/eval/{recipe}/step_{step}/counts.json"
            for recipe, step in EVALUATED
        ],
    localrule: True
