"""The locked environments, each created once, on demand.

INPUTS   envs/{env}/uv.lock
OUTPUTS  {work}/envs/{env}.json
"""


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
