"""The raw release and the evaluation set, and what images and branches there are.

INPUTS   Hugging Face, or a folder of the hub's shape: release.folder, else the miniature's {data}/hub
OUTPUTS  {data}/raw/train-*.parquet, {data}/verified.parquet, {data}/release.json, {data}/branches/{image}.json
"""

from lightning_smith.repositories.catalogue import image_files
from lightning_smith.release.image_lists import read_names

SHARDS = [
    f"{i:05d}-of-{config['release']['shards']:05d}"
    for i in range(config["release"]["shards"])
]
RAW = [f"{DATA}/raw/train-{shard}.parquet" for shard in SHARDS]
FROM_FOLDER = BACKENDS["hub"] == "folder"
HUB_FOLDER = config["release"]["folder"] or f"{DATA}/hub"
HUB_SUMS = [f"{HUB_FOLDER}/SHA256SUMS"] if FROM_FOLDER else []
EVALUATION_SET = (
    f"{DATA}/heldout.parquet" if OF_MINIATURE else f"{DATA}/verified.parquet"
)
# No input: a row more in the table must not fetch the shards again.
SHARD_TABLE = "assets/release/shards.tsv"


# What rollouts record of their images is compared with.
MANIFESTS = Path(f"{DATA}/images") if PULLED else None


def release_expectations(wildcards):
    """The flags of check_release.py that say what the release must have."""
    release = config["release"]
    counted = ("rows", "empty_statements", "images")
    flags = [
        f"--{name.replace('_', '-')} {release[name]}"
        for name in counted
        if release[name] is not None
    ]
    return " ".join([*flags, "--allow-other", *release["allow_other_counts"]])


rule download_shard:
    """Fetch one parquet shard of the release and check its hash."""
    input:
        HUB_SUMS,
    output:
        shard=f"{DATA}/raw/train-{{shard}}.parquet",
        record=f"{DATA}/raw/train-{{shard}}.parquet.json",
    log:
        f"{LOGS}/download_shard/{{shard}}.log",
    wildcard_constraints:
        shard=r"\d{5}-of-\d{5}",
    resources:
        machine="any",
    params:
        source="folder" if FROM_FOLDER else "hub",
        location=HUB_FOLDER if FROM_FOLDER else config["release"]["dataset"],
        revision=config["release"]["revision"] or "none",
        table=SHARD_TABLE,
    message:
        "download shard {wildcards.shard}"
    shell:
        "python scripts/release/download_shard.py --source {params.source} --location {params.location:q}"
        " --revision {params.revision} --table {params.table} --file data/train-{wildcards.shard}.parquet"
        " --out {output.shard:q} 2>&1 | tee -i {log:q}"


rule download_verified:
    """Fetch the evaluation set and check its hash and columns."""
    input:
        HUB_SUMS,
    output:
        table=f"{DATA}/verified.parquet",
        record=f"{DATA}/verified.parquet.json",
    log:
        f"{LOGS}/download_verified.log",
    resources:
        machine="any",
    params:
        source="folder" if FROM_FOLDER else "hub",
        location=HUB_FOLDER if FROM_FOLDER else config["evaluation"]["dataset"],
        revision=config["evaluation"]["revision"] or "main",
        instances=config["evaluation"]["instances"],
        table=SHARD_TABLE,
    message:
        "download the evaluation set"
    shell:
        "python scripts/release/download_verified.py --source {params.source} --location {params.location:q}"
        " --revision {params.revision:q} --table {params.table} --instances {params.instances}"
        " --out {output.table:q} 2>&1 | tee -i {log:q}"


rule check_release:
    """Count rows, images and empty statements; refuse a release that is not the configured one."""
    input:
        RAW,
    output:
        f"{DATA}/release.json",
    log:
        f"{LOGS}/check_release.log",
    resources:
        machine="any",
    params:
        expected=release_expectations,
    message:
        "check the counts of the release"
    shell:
        "python scripts/release/check_release.py --shards {input:q} {params.expected} --out {output:q}"
        " 2>&1 | tee -i {log:q}"


def own_images(name):
    """Git repositories of a release that is not the miniature's, made by its owner; refuses a release that lacks some."""
    table = Path(checkpoints.list_image_names.get(set=name).output[0])
    with exit_on_user_error():
        return list(map(str, image_files(Path(f"{WORK}/images"), read_names(table))))


def image_record(wildcards):
    """What says that an image is there: the local one, the one that is made here, or the one that was prepared."""
    if BACKENDS["images"] == "local":
        return [f"{WORK}/images/{wildcards.image}/image.json"]
    return built_images([wildcards.image]) or [f"{DATA}/images/{wildcards.image}.json"]


rule list_branches:
    """Read the branches inside one image, without network and without starting the task."""
    input:
        image_record,
    output:
        f"{DATA}/branches/{{image}}.json",
    log:
        f"{LOGS}/list_branches/{{image}}.log",
    resources:
        machine="docker" if BACKENDS["images"] == "docker" else "any",
        # No input: other images of the release must not have the branches of all listed again.
        names=f"{DATA}/image_names/release.tsv",
    params:
        source=(
            f"--images {WORK}/images" if BACKENDS["images"] == "local" else "--docker"
        ),
    message:
        "list the branches of {wildcards.image}"
    shell:
        "python scripts/release/list_branches.py --image-name {wildcards.image} --names {resources.names:q}"
        " {params.source} --out {output:q} 2>&1 | tee -i {log:q}"
