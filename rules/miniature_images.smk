"""The miniature's repositories as Docker images of SWE-smith's layout. For backends.images=docker over its own release.

INPUTS   {work}/images/{image}/image.json, the base image that images.miniature_base names
OUTPUTS  {work}/docker_images/{image}.json
"""

BUILT_STATES = ImageStates(
    Path(f"{WORK}/docker_image_states"), Path(f"{WORK}/docker_images")
)


def docker_images_of_miniature(wildcards):
    """Records of all Docker images of the miniature's packages; refuses a release that is not its own."""
    with exit_on_user_error():
        refuse_local(BACKENDS)
        if not OF_MINIATURE:
            raise UserError(
                "only the miniature's images are built, and those of this release are pulled: run "
                "`uv run snakemake --profile k8s -- prepare_images`"
            )
    keys = image_keys("train", "heldout")
    BUILT_STATES.compare(keys)
    return built_images(keys)


rule build_docker_image:
    """Make the Docker image of one package of the miniature out of its git repository."""
    input:
        local=f"{WORK}/images/{{image}}/image.json",
        environment=f"{WORK}/envs/testbed.json",
        state=lambda wildcards: BUILT_STATES.file(wildcards.image),
    output:
        f"{WORK}/docker_images/{{image}}.json",
    log:
        f"{LOGS}/build_docker_image/{{image}}.log",
    wildcard_constraints:
        image="|".join(map(re.escape, SOURCE_OF_IMAGE)),
    resources:
        machine="docker",
        sources=IMAGE_SOURCES,
    params:
        work=WORK,
        base=CONFIG.images.miniature_base,
    message:
        "build the Docker image {wildcards.image}"
    shell:
        "python scripts/miniature/build_docker_image.py --image {params.work}/images/{wildcards.image}"
        " --base {params.base:q} --testbed envs/testbed/.venv --sources {resources.sources:q} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


rule build_docker_images:
    """Every Docker image of the miniature's packages, without the agent layer."""
    input:
        docker_images_of_miniature,
    localrule: True
