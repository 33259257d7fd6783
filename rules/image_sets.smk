"""All Docker images of a data set: the targets, and a table of their manifests.

INPUTS   {data}/images/{image}.json
OUTPUTS  {data}/images_{set}.tsv
"""


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
        "python scripts/images_table.py --manifests {input:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule prepare_images:
    """Every image that the release names, ready at the Docker daemon as <image>:openai."""
    input:
        plan_of("release"),
        f"{DATA}/images_release.tsv",
        # Named here too: a manifest that is missing does not make a table that exists anew.
        lambda wildcards: manifests_of("release"),
    localrule: True


rule prepare_verified_images:
    """Every image that the evaluation set names, ready at the Docker daemon as <image>:openai."""
    input:
        plan_of("verified"),
        f"{DATA}/images_verified.tsv",
        # Named here too: a manifest that is missing does not make a table that exists anew.
        lambda wildcards: manifests_of("verified"),
    localrule: True
