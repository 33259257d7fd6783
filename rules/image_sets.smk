"""All Docker images of a data set: what they take, the targets, a table, and their import into nodes' containerd.

INPUTS   {data}/image_names/{set}.tsv, {data}/images/{image}.json
OUTPUTS  {work}/image_plans/{set}-{choice}.json, {data}/images_{set}.tsv, {data}/node_images_{set}.tsv
"""

import shlex


def node_flags():
    """Where images are imported. A parameter of the rule: another list of nodes has to be gone through."""
    nodes = config["images"]["import_into"] or []
    flags = [f"--node={command}" for command in nodes]
    return shlex.join([*flags, f"--min-mb-per-s={config['images']['min_mb_per_s']}"])


rule plan_images:
    """Say which images are missing and how large they are; refuse what does not fit."""
    input:
        names=f"{DATA}/image_names/{{set}}.tsv",
        made=lambda wildcards: built_images(wanted_images(wildcards.set)),
    output:
        f"{WORK}/image_plans/{{set}}-{{choice}}.json",
    log:
        f"{LOGS}/plan_images/{{set}}-{{choice}}.log",
    priority: 100  # before the first pull
    resources:
        machine="docker",
        sources=IMAGE_SOURCES,
    params:
        only=lambda wildcards: (
            " ".join(["--only", *only]) if (only := only_of(wildcards.set)) else ""
        ),
    message:
        "plan the images of the {wildcards.set} set"
    shell:
        "python scripts/images/plan_images.py --names {input.names:q} {params.only} --sources {resources.sources:q}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


rule images_table:
    """Collect the manifests of a data set's images in one table."""
    input:
        lambda wildcards: manifests_of(wildcards.set),
    output:
        f"{DATA}/images_{{set}}.tsv",
    log:
        f"{LOGS}/images_table/{{set}}.log",
    resources:
        machine="any",
    message:
        "collect the images of the {wildcards.set} set"
    shell:
        "python scripts/images/images_table.py --manifests {input:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule import_into_nodes:
    """Import a data set's images into the containerd of the nodes."""
    input:
        lambda wildcards: manifests_of(wildcards.set),
    output:
        f"{DATA}/node_images_{{set}}.tsv",
    log:
        f"{LOGS}/import_into_nodes/{{set}}.log",
    wildcard_constraints:
        set="release|verified",
    resources:
        machine="docker",
    params:
        nodes=node_flags(),
    message:
        "import the images of the {wildcards.set} set into the nodes"
    shell:
        "python scripts/images/import_into_nodes.py --manifests {input:q} {params.nodes} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


rule prepare_images:
    """Every image that the release names, ready at the Docker daemon as <image>:openai."""
    input:
        plan_of("release"),
        f"{DATA}/images_release.tsv",
        # Named here too: a manifest that is missing does not make a table that exists anew.
        lambda wildcards: manifests_as_they_are("release"),
    localrule: True


rule prepare_verified_images:
    """Every image that the evaluation set names, ready at the Docker daemon as <image>:openai."""
    input:
        plan_of("verified"),
        f"{DATA}/images_verified.tsv",
        # Named here too: a manifest that is missing does not make a table that exists anew.
        lambda wildcards: manifests_as_they_are("verified"),
    localrule: True


rule import_images:
    """Every image of the release in the containerd of each node in images.import_into."""
    input:
        rules.prepare_images.input,
        f"{DATA}/node_images_release.tsv",
    localrule: True


rule import_verified_images:
    """Every image of the evaluation set in the containerd of each node in images.import_into."""
    input:
        rules.prepare_verified_images.input,
        f"{DATA}/node_images_verified.tsv",
    localrule: True
