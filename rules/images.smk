"""Docker images: pulled, with the agent layer, proved, and a manifest for each. For backends.images=docker.

INPUTS   {data}/raw/train-*.parquet, {data}/verified.parquet, registries, {work}/envs/smith.json
OUTPUTS  {data}/image_names/{set}.tsv, {data}/images/{image}.json
"""

from lightning_smith.config.stages import image_sources, image_stage
from lightning_smith.core.files import hash_json
from lightning_smith.images.layer import harness_sha256
from lightning_smith.repositories.names import is_evaluation
from lightning_smith.release.image_lists import choose
from lightning_smith.images.state import ImageStates

IMAGE_SETS = {"release": RAW, "verified": [EVALUATION_SET]}
IMAGE_STATES = ImageStates(Path(f"{WORK}/image_states"), Path(f"{DATA}/images"))


def set_of(image):
    """The data set that an image is of."""
    heldout = OF_MINIATURE and image in image_keys("heldout")
    return "verified" if heldout or is_evaluation(image) else "release"


def only_of(name):
    """Keys of one data set that images.only restricts preparation to; empty for all."""
    only = config["images"]["only"]
    names = [only] if isinstance(only, str) else only or []
    return [key for key in map(image_key, names) if set_of(key) == name]


def wanted_images(name):
    """Keys of the images of a data set that are to be prepared, known once the data set is there."""
    with exit_on_user_error():
        refuse_local(BACKENDS)
    table = Path(checkpoints.list_image_names.get(set=name).output[0])
    with exit_on_user_error():
        return choose(read_names(table), only_of(name))


def manifests_of(name):
    """Manifests of the wanted images of a data set."""
    return [f"{DATA}/images/{key}.json" for key in wanted_images(name)]


def manifests_as_they_are(name):
    """The same, for targets about images: those that the daemon lost or altered are made again."""
    for states in [IMAGE_STATES] + ([BUILT_STATES] if OF_MINIATURE else []):
        states.compare(wanted_images(name))
    return manifests_of(name)


def plan_of(name):
    """The plan of what is wanted of a data set; another choice of images has another plan."""
    return f"{WORK}/image_plans/{name}-{hash_json(only_of(name))[:8]}.json"


def certified(image):
    """Whether tasks are graded in an image as a part of its proof."""
    return CONFIG.images.certify_tasks and set_of(image) == "release"


def image_settings(image):
    """The settings of the preparation of an image; the evaluation set has a harness of its own."""
    return settings(image_stage, RAW if set_of(image) == "release" else [])


# Of no consequence for what images are, so no parameter.
IMAGE_SOURCES = settings(image_sources)


checkpoint list_image_names:
    """List the images that a data set names."""
    input:
        datasets=lambda wildcards: IMAGE_SETS[wildcards.set],
        checked=lambda wildcards: (
            rules.check_release.output if wildcards.set == "release" else []
        ),
    output:
        f"{DATA}/image_names/{{set}}.tsv",
    log:
        f"{LOGS}/list_image_names/{{set}}.log",
    wildcard_constraints:
        set="release|verified",
    resources:
        # What it lists is prepared next, which no plan shows before: a machine without Docker is refused here.
        machine="docker" if PULLED else "any",
    message:
        "list the images of the {wildcards.set} set"
    shell:
        "python scripts/release/list_image_names.py --datasets {input.datasets:q} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


rule agent_layer:
    """Build /opt/agent once for all images: Python, the OpenAI client, the harness."""
    input:
        lock="envs/agent/uv.lock",
    output:
        f"{WORK}/agent/layer-glibc.json",
    log:
        f"{LOGS}/agent_layer.log",
    resources:
        machine="any",
    params:
        python=CONFIG.images.agent_python,
        # Not by time: a fresh checkout must not make every image again.
        harness=harness_sha256(),
    message:
        "build the agent layer"
    shell:
        "python scripts/images/agent_layer.py --python {params.python:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule prepare_image:
    """Pull one image, add the agent layer, prove both, and write its manifest."""
    input:
        layer=rules.agent_layer.output,
        state=lambda wildcards: IMAGE_STATES.file(wildcards.image),
        smith=lambda wildcards: SMITH if certified(wildcards.image) else [],
        made=lambda wildcards: made_here([wildcards.image]),
    output:
        f"{DATA}/images/{{image}}.json",
    log:
        f"{LOGS}/prepare_image/{{image}}.log",
    resources:
        machine="docker",
        pulls=1,
        sources=IMAGE_SOURCES,
        # No inputs: other images of the set, or another choice, must not make all of them again.
        names=lambda wildcards: f"{DATA}/image_names/{set_of(wildcards.image)}.tsv",
        plan=lambda wildcards: plan_of(set_of(wildcards.image)),
    params:
        settings=lambda wildcards: image_settings(wildcards.image),
    message:
        "prepare {wildcards.image}"
    shell:
        "python scripts/images/prepare_image.py --settings {params.settings:q} --sources {resources.sources:q}"
        " --key {wildcards.image} --names {resources.names:q} --plan {resources.plan:q} --out {output:q}"
        " 2>&1 | tee -i {log:q}"
