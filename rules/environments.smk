"""The locked environments, each created once, on demand.

INPUTS   envs/{env}/uv.lock
OUTPUTS  {work}/envs/{env}.json
"""

# What a stage with rollouts, and what the official grading, runs in beside the environment of the workflow.
TESTBED = [f"{WORK}/envs/testbed.json"] if BACKENDS["images"] == "local" else []
# SWE-smith's registry lives in an environment of its own.
SMITH = [f"{WORK}/envs/smith.json"] if BACKENDS["tests"] == "smith" else []
ROLLOUT_ENVIRONMENTS = TESTBED + (
    [f"{WORK}/envs/mini.json"] if BACKENDS["policy"] == "torch" else []
)
# Rollouts in pods need none of this machine's.
GRADING_ENVIRONMENTS = [] if BACKENDS["workspace"] == "pod" else SMITH
GRADE_ENVIRONMENTS = [f"{WORK}/envs/eval.json"] + (
    [f"{WORK}/envs/testbed.json"] if BACKENDS["harness"] == "bwrap" else []
)


rule environment:
    """Create one of the environments under envs/."""
    input:
        lock="envs/{env}/uv.lock",
        project="envs/{env}/pyproject.toml",
    output:
        f"{WORK}/envs/{{env}}.json",
    log:
        f"{LOGS}/environment/{{env}}.log",
    resources:
        machine="any",
    message:
        "environment {wildcards.env}: installing what its lock names"
    shell:
        "python scripts/environment.py --project envs/{wildcards.env} --out {output:q} 2>&1 | tee -i {log:q}"
