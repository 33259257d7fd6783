"""A clone of the repository whose environments are those of this checkout, for runs of the real workflow."""

from __future__ import annotations

import shutil

import pytest
from checkout import copy_checkout
from tiny_workflow import ENVIRONMENTS, ROOT, Workflow

from lightning_smith.environments import create
from lightning_smith.files import write_json


@pytest.fixture(scope="session")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    folder = copy_checkout(tmp_path_factory.mktemp("a clone, é") / "repo")
    clone = Workflow(folder)
    for name in ENVIRONMENTS:
        write_json(clone.work / "envs" / f"{name}.json", create(ROOT / "envs" / name))
        (folder / "envs" / name / ".venv").symlink_to(ROOT / "envs" / name / ".venv")
    sdists = ROOT / "work" / "mini" / "sdists"
    if sdists.is_dir():
        shutil.copytree(sdists, clone.work / "sdists")
    return clone
