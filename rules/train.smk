"""Reinforcement learning in segments that end at the recipe's checkpoints, and their export.

INPUTS   {data}/{train_dataset_mixed,val_dataset_filtered}.jsonl, the policy before training, images
OUTPUTS  {results}/train/{recipe}/step_{step}.json, {results}/export/{recipe}/step_{step}.json
"""

from lightning_smith.config.stages import train_stage


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
        gradings=CONFIG.agent.gradings,
        rollouts=32,
    params:
        settings=lambda wildcards: settings(train_stage, wildcards.recipe, MANIFESTS),
    message:
        "train {wildcards.recipe} to step {wildcards.step}"
    shell:
        "uv run --frozen --project envs/mini python scripts/train/train_segment.py --settings {params.settings:q}"
        " --step {wildcards.step} --tasks {input.tasks:q} --validation {input.validation:q}"
        " --max-rollouts {resources.rollouts} --out {output:q} 2>&1 | tee -i {log:q}"


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
        " --model {params.model:q} --export {params.work}/export/{wildcards.recipe}/step_{wildcards.step}"
        " --out {output:q}"
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
