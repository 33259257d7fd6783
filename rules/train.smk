"""Reinforcement learning in segments that end at the recipe's checkpoints, and their export.

INPUTS   {data}/{train_dataset_mixed,val_dataset_filtered}.jsonl, the policy before training, images
OUTPUTS  {results}/train/{recipe}/step_{step}.json, {results}/export/{recipe}/step_{step}.json
"""


def segment_start(wildcards):
    """The manifest of the checkpoint before this one; nothing before the first."""
    with exit_on_user_error():
        before = step_before(config, wildcards.recipe, int(wildcards.step))
    return [f"{RESULTS}/train/{wildcards.recipe}/step_{before}.json"] if before else []


rule train_segment:
    """Train one recipe from its checkpoint before up to this step."""
    input:
        segment_start,
        tasks=rules.split.output.train,
        validation=rules.split.output.val,
        images=task_images("train"),
        references=REFERENCES,
        environments=ROLLOUT_ENVIRONMENTS + GRADING_ENVIRONMENTS,
    output:
        f"{RESULTS}/train/{{recipe}}/step_{{step}}.json",
    log:
        f"{LOGS}/train/{{recipe}}_{{step}}.log",
    benchmark:
        f"{WORK}/benchmarks/train_segment/{{recipe}}_{{step}}.tsv"
    threads: 2
    resources:
        machine="B",
        gpu=4,
        gradings=config["agent"]["gradings"],
    params:
        work=WORK,
        logs=LOGS,
        recipe=recipe_settings,
        model=lambda wildcards: policy_of(wildcards.recipe)["model"],
        context=lambda wildcards: policy_of(wildcards.recipe)["max_model_len"],
        temperature=config["evaluation"]["temperature"],
        agent=agent_settings,
        workspace=BACKENDS["workspace"],
        manifests=MANIFESTS,
        references="--references" if REFERENCES else "",
        tests=BACKENDS["tests"],
    message:
        "train {wildcards.recipe} to step {wildcards.step}"
    shell:
        "uv run --frozen --project envs/mini python scripts/train/train_segment.py --recipe {wildcards.recipe}"
        " --settings {params.recipe:q} --step {wildcards.step} --tasks {input.tasks:q} --model {params.model:q} --context {params.context}"
        " --validation {input.validation:q} --validation-temperature {params.temperature} --workspace {params.workspace} --tests {params.tests} --images {params.work}/images {params.manifests} {params.references} {input.references:q} --agent {params.agent:q} --gradings {resources.gradings} --work {params.work}/train --logs {params.logs}/train/{wildcards.recipe}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


rule export_checkpoint:
    """Write a checkpoint in Hugging Face format and prove that it is the trained one."""
    input:
        rules.train_segment.output,
    output:
        f"{RESULTS}/export/{{recipe}}/step_{{step}}.json",
    log:
        f"{LOGS}/export/{{recipe}}_{{step}}.log",
    resources:
        machine="B",
    params:
        work=WORK,
        model=lambda wildcards: policy_of(wildcards.recipe)["model"],
    message:
        "export {wildcards.recipe} step {wildcards.step}"
    shell:
        "uv run --frozen --project envs/mini python scripts/train/export_checkpoint.py --manifest {input:q}"
        " --model {params.model:q} --export {params.work}/export/{wildcards.recipe}/step_{wildcards.step} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


def last_checkpoints(kind):
    """Manifests of the last checkpoint of every recipe whose policy is of this kind."""
    return [
        f"{RESULTS}/train/{name}/step_{recipe['checkpoints'][-1]}.json"
        for name, recipe in RECIPES.items()
        if policy_of(name)["kind"] == kind
    ]


rule export_checkpoints:
    """Every checkpoint that is evaluated, in Hugging Face format."""
    input:
        [
            f"{RESULTS}/export/{name}/step_{step}.json"
            for name, recipe in RECIPES.items()
            for step in recipe["evaluate"]
            if step
        ],
    localrule: True


rule train_dense:
    """Every recipe that trains the dense policy, to its last checkpoint."""
    input:
        last_checkpoints("dense"),
    localrule: True


rule train_moe:
    """Every recipe that trains the mixture of experts, to its last checkpoint."""
    input:
        last_checkpoints("moe"),
    localrule: True
