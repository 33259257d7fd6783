"""A clone of the repository whose environments are those of this checkout, for runs of the real workflow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkout import copy_checkout
from kind_fixtures import daemon, docker_image_name, kind, local_image, pods
from layer_fixtures import built, layer
from tiny_workflow import ENVIRONMENTS, ROOT, Workflow

from lightning_smith.environments import create
from lightning_smith.files import write_json

__all__ = ["built", "daemon", "docker_image_name", "kind", "layer", "local_image", "pods"]


def padded(parent: Path, length: int) -> Path:
    """A folder in `parent` whose path has `length` characters."""
    return parent / ("x" * (length - len(str(parent)) - 1))


def make_workflow(tmp_path_factory: pytest.TempPathFactory, name: str, *overlays: str) -> Workflow:
    """Its path has 150 characters, a blank and an é among them, and the temporary folder's 120."""
    clones, temporary = tmp_path_factory.mktemp("a clone, é"), tmp_path_factory.mktemp("temporary")
    clone = Workflow(copy_checkout(padded(clones, 150)), padded(temporary, 120), name, *overlays)
    clone.temporary.mkdir()
    for environment in ENVIRONMENTS:
        made = create(ROOT / "envs" / environment)
        write_json(clone.work / "envs" / f"{environment}.json", made)
        (clone.folder / "envs" / environment / ".venv").symlink_to(ROOT / "envs" / environment / ".venv")
    sdists = ROOT / "work" / "mini" / "sdists"
    if sdists.is_dir():
        shutil.copytree(sdists, clone.work / "sdists")
    return clone


@pytest.fixture(scope="session")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The tiny experiment."""
    return make_workflow(tmp_path_factory, "tiny")


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The data funnel with every filter on."""
    return make_workflow(tmp_path_factory, "certified")
