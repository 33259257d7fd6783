"""The miniature's policies before reinforcement learning, made from nothing. assets/miniature/warm_start is the result.

INPUTS   sdists of the roles `demo` and `heldout` in assets/miniature/sources.tsv
OUTPUTS  {work}/made/warm_start/{dense,moe}/model.safetensors
"""

DEMO_SDISTS = [
    f"{WORK}/sdists/{source.filename}"
    for source in SOURCES.values()
    if source.role in ("demo", "heldout")
]


rule make_demonstrations:
    """Find one-line edits in packages that no task uses, none of a line that a held-out package has."""
    input:
        sdists=DEMO_SDISTS,
        heldout=f"{ASSETS}/tasks/heldout.jsonl",
    output:
        f"{WORK}/made/demonstrations.jsonl",
    log:
        f"{LOGS}/make_demonstrations.log",
    resources:
        machine="any",
    params:
        work=WORK,
        assets=ASSETS,
    message:
        "make demonstrations"
    shell:
        "python scripts/miniature/make_demonstrations.py --sources {params.assets}/sources.tsv"
        " --sdists {params.work}/sdists --exclude-lines {input.heldout:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule make_warm_start:
    """Train the dense policy on demonstrations, from random weights (about an hour on one core)."""
    input:
        demonstrations=rules.make_demonstrations.output,
        environment=f"{WORK}/envs/mini.json",
    output:
        f"{WORK}/made/warm_start/dense/model.safetensors",
    log:
        f"{LOGS}/make_warm_start.log",
    resources:
        machine="any",
    params:
        work=WORK,
        out=lambda wildcards, output: Path(output[0]).parent,
        device=config["warm_start"]["device"],
    message:
        "train the dense warm start"
    shell:
        "uv run --frozen --project envs/mini python scripts/miniature/make_warm_start.py"
        " --demonstrations {input.demonstrations:q} --work {params.work}/warm_start --out {params.out:q}"
        " --device {params.device} 2>&1 | tee -i {log:q}"


rule make_moe_warm_start:
    """Make the mixture of experts from the dense policy's next to last stage."""
    input:
        demonstrations=rules.make_demonstrations.output,
        dense=rules.make_warm_start.output,
        environment=f"{WORK}/envs/mini.json",
    output:
        f"{WORK}/made/warm_start/moe/model.safetensors",
    log:
        f"{LOGS}/make_moe_warm_start.log",
    resources:
        machine="any",
    params:
        work=WORK,
        out=lambda wildcards, output: Path(output[0]).parent,
        device=config["warm_start"]["device"],
    message:
        "train the mixture-of-experts warm start"
    shell:
        "uv run --frozen --project envs/mini python scripts/miniature/make_moe_warm_start.py"
        " --dense {params.work}/warm_start/4-choosing --demonstrations {input.demonstrations:q}"
        " --work {params.work}/warm_start --out {params.out:q} --device {params.device} 2>&1 | tee -i {log:q}"


rule warm_start:
    """Both warm starts of the miniature from nothing, under {work}/made/warm_start."""
    input:
        rules.make_warm_start.output,
        rules.make_moe_warm_start.output,
    localrule: True
