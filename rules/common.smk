"""Helpers of the rules: folders, names, previous steps. No rules here."""

import os
import re
import sys
from pathlib import Path

from snakemake.utils import update_config

from lightning_smith.config.backends import refuse_local, refuse_lost_overlay
from lightning_smith.config.checks import (
    active_recipes,
    check_references,
    configured_recipe,
    step_before,
)
from lightning_smith.config.models import read_config
from lightning_smith.config.settings_file import SettingsFiles
from lightning_smith.core.errors import UserError, exit_on_user_error
from lightning_smith.images.state import failures_text
from lightning_smith.miniature.tasks.table import load_sources
from lightning_smith.repositories.names import image_key
from lightning_smith.workflow.command_line import config_values

# By rule, where the profile or --set-resources give them another machine.
MAPPED_MACHINES = {
    name: str(resources["machine"].raw)
    for name, resources in workflow.resource_settings.overwrite_resources.items()
    if "machine" in resources
}

with exit_on_user_error():
    for values in config_values(workflow.config_settings.config_args or ()):
        update_config(config, values)
    CONFIG = read_config(config)
    check_references(config)
    refuse_lost_overlay(
        MAPPED_MACHINES, config["backends"], workflow.config_settings.configfiles
    )

# The environment that runs Snakemake also runs gateway and controller; scripts in other environments find it here.
os.environ["LIGHTNING_SMITH_PYTHON"] = sys.executable
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
)
# uv would warn about it in every rule that runs in another environment.
os.environ.pop("VIRTUAL_ENV", None)
# Without byte code each grading would compile swebench anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Several processes share the cores: none may spin while it waits.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

DATA, WORK, RESULTS = (config["dirs"][key] for key in ("data", "work", "results"))
LOGS = f"{WORK}/logs"
SETTINGS = SettingsFiles(Path(f"{WORK}/settings"))
BACKENDS = config["backends"]
# Whether the release is the miniature's own, made here.
OF_MINIATURE = BACKENDS["hub"] == "folder" and config["release"]["folder"] is None
# Whether images come from registries.
PULLED = BACKENDS["images"] == "docker" and not OF_MINIATURE
RECIPES = active_recipes(config)
ASSETS = "assets/miniature"

with exit_on_user_error():
    SOURCES = {
        source.filename: source
        for source in load_sources(Path(f"{ASSETS}/sources.tsv"))
    }

TASK_SOURCES = [
    source for source in SOURCES.values() if source.role in ("train", "heldout")
]


def image_keys(*roles):
    """Keys of the images of the miniature's packages of these roles."""
    return [image_key(s.image_name) for s in TASK_SOURCES if s.role in roles]


def local_images(role):
    """Git repositories of the tasks of one role: the miniature's packages', else those that the data set names."""
    if OF_MINIATURE:
        return [f"{WORK}/images/{key}/image.json" for key in image_keys(role)]
    if BACKENDS["images"] != "local":
        return []
    name = {"train": "release", "heldout": "verified"}[role]
    return lambda wildcards: own_images(name)


def built_images(keys):
    """Records of Docker images that are made here; none of a release whose images are pulled."""
    if BACKENDS["images"] != "docker" or not OF_MINIATURE:
        return []
    return [f"{WORK}/docker_images/{key}.json" for key in keys]


def made_here(keys):
    """The same, for rules about Docker images: refuses a configuration without them."""
    with exit_on_user_error():
        refuse_local(BACKENDS)
    return built_images(keys)


def task_images(role):
    """What a stage waits for that runs tasks of one role: images made here, or manifests of pulled ones."""
    if BACKENDS["images"] == "local":
        return local_images(role)
    if OF_MINIATURE:
        return built_images(image_keys(role))
    return lambda wildcards: manifests_of("release" if role == "train" else "verified")


def table_of_images(name):
    """The table of a data set's pulled images: a plan shows it before it can know which images there are."""
    return [f"{DATA}/images_{name}.tsv"] if PULLED else []


def policy_of(recipe):
    """The policy's section of the configuration; refuses a recipe that is not configured."""
    with exit_on_user_error():
        return config["policies"][configured_recipe(config, recipe)["policy"]]


def settings(stage, *about):
    """The file that says to a script what `stage` of the configuration is, a parameter that changes with its content."""
    with exit_on_user_error():
        return SETTINGS.path(stage(CONFIG, *about))
