"""Predictions of the base and of every checkpoint on held-out tasks, and their official grading.

INPUTS   {data}/heldout.parquet, images, {results}/export/{recipe}/step_{step}.json (step 0: the policy before training)
OUTPUTS  {results}/eval/{recipe}/step_{step}/{counts.json,verdicts.jsonl,sample_*/{preds.jsonl,report.json}}
"""

SAMPLES = list(range(config["evaluation"]["samples"]))
EVALUATED = [(name, step) for name, recipe in RECIPES.items() for step in recipe["evaluate"]]
EVALUATION = f"{RESULTS}/eval/{{recipe}}/step_{{step}}"


def model_at(wildcards):
    """The folder of the policy at a step: where it starts from, or the export."""
    if int(wildcards.step) == 0:
        return policy_of(wildcards.recipe)["model"]
    step_before(wildcards.recipe, int(wildcards.step))
    return f"{WORK}/export/{wildcards.recipe}/step_{wildcards.step}"


def export_at(wildcards):
    """The export's manifest; nothing at step 0."""
    step = int(wildcards.step)
    return [f"{RESULTS}/export/{wildcards.recipe}/step_{step}.json"] if step else []


rule predict:
    """Roll the policy out on the held-out tasks and write predictions."""
    input:
        export_at,
        tasks=f"{DATA}/heldout.parquet",
        images=local_images("heldout"),
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
        model=model_at,
        policy=lambda wildcards: RECIPES[wildcards.recipe]["policy"],
        context=lambda wildcards: policy_of(wildcards.recipe)["max_model_len"],
        dtype=lambda wildcards: ROLLOUT_DTYPES[policy_of(wildcards.recipe)["kind"]],
        dataset=config["evaluation"]["dataset"],
        instances=config["evaluation"]["instances"],
        samples=config["evaluation"]["samples"],
        temperature=config["evaluation"]["temperature"],
        seed=config["evaluation"]["seed"],
        agent=dump_json(config["agent"]),
        out=lambda wildcards, output: Path(output.run).parent,
    message:
        "evaluate {wildcards.recipe} step {wildcards.step}: predictions"
    shell:
        "python scripts/predict.py --tasks {input.tasks:q} --dataset {params.dataset:q} --instances {params.instances}"
        " --samples {params.samples} --seed {params.seed} --recipe {wildcards.recipe} --step {wildcards.step}"
        " --model {params.model:q} --model-name {params.policy} --dtype {params.dtype} --context {params.context}"
        " --temperature {params.temperature} --images {WORK}/images --settings {params.agent:q}"
        " --work {WORK}/predict/{wildcards.recipe}/step_{wildcards.step} --logs {LOGS}/predict/{wildcards.recipe}_{wildcards.step}"
        " --out {params.out:q} 2>&1 | tee -i {log:q}"
