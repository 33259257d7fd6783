"""A clone of the repository whose environments are those of this checkout, for runs of the real workflow."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from tiny_workflow import ENVIRONMENTS, ROOT, Workflow

from lightning_smith.environments import create
from lightning_smith.files import write_json


@pytest.fixture(scope="session")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    folder = tmp_path_factory.mktemp("a clone, é") / "repo"
    folder.mkdir()
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():
            shutil.copy2(source, target)
    clone = Workflow(folder)
    for name in ENVIRONMENTS:
        write_json(clone.work / "envs" / f"{name}.json", create(ROOT / "envs" / name))
        (folder / "envs" / name / ".venv").symlink_to(ROOT / "envs" / name / ".venv")
    sdists = ROOT / "work" / "mini" / "sdists"
    if sdists.is_dir():
        shutil.copytree(sdists, clone.work / "sdists")
    return clone
