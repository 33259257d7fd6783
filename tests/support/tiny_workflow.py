"""A tiny experiment, tests/data/<name>.yaml, in a clone of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from checkout import copy_checkout

from lightning_smith.core.files import write_json
from lightning_smith.workflow.environments import create

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ("mini", "eval", "testbed")


class Workflow:
    """An experiment in a clone: starts runs, and ends them as a user or a power cut would."""

    def __init__(self, folder: Path, temporary: Path, name: str = "tiny", *overlays: str) -> None:
        self.temporary, self.name = temporary, name
        self.configs = ["config/mini.yaml", *overlays, f"tests/data/{name}.yaml"]
        self.folder, self.data, self.work, self.results = (
            folder,
            folder / "data" / name,
            folder / "work" / name,
            folder / "results" / name,
        )
        # The clone runs its own scripts and package in this checkout's environments, which must stay as they are.
        self.environment = {
            **os.environ,
            "UV_NO_SYNC": "1",
            "PYTHONPATH": str(folder),
            "TMPDIR": str(temporary),
        }

    def command(self, *targets: str) -> list[str]:
        configs = ["--configfile", *self.configs]
        return [sys.executable, "-m", "snakemake", "--profile", "mini", *configs, "--", *targets]

    def start(self, *targets: str, log: str = "run.log") -> subprocess.Popen[bytes]:
        output = (self.folder / log).open("wb")
        return subprocess.Popen(
            self.command(*targets), cwd=self.folder, env=self.environment, stdout=output, stderr=output
        )

    def run(self, *targets: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*targets),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def processes(self, words: str = "") -> list[psutil.Process]:
        """What runs in this clone (its command line or working directory names the folder) with these words."""
        found = []
        for process in psutil.process_iter():
            try:
                line, cwd = " ".join(process.cmdline()), process.cwd()
            except (psutil.Error, OSError):  # a folder may be deeper than its path may be long
                continue
            if words in line and (str(self.folder) in line or cwd.startswith(str(self.folder))):
                found.append(process)
        return found


def padded(parent: Path, length: int) -> Path:
    """A folder in `parent` whose path has `length` characters."""
    return parent / ("x" * (length - len(str(parent)) - 1))


def make_workflow(tmp_path_factory: pytest.TempPathFactory, name: str, *overlays: str) -> Workflow:
    """A clone with this checkout's environments.

    Its path has 150 characters, a blank and an é among them, and the temporary folder's 120.
    """
    clones, temporary = tmp_path_factory.mktemp("a clone, é"), tmp_path_factory.mktemp("temporary")
    clone = Workflow(copy_checkout(padded(clones, 150)), padded(temporary, 120), name, *overlays)
    clone.temporary.mkdir()
    for environment in ENVIRONMENTS:
        # Another process may be running tests in it, which need more than is locked (test_environments.py).
        made = create(ROOT / "envs" / environment, exact=False)
        write_json(clone.work / "envs" / f"{environment}.json", made)
        (clone.folder / "envs" / environment / ".venv").symlink_to(ROOT / "envs" / environment / ".venv")
    sdists = ROOT / "work" / "mini" / "sdists"
    if sdists.is_dir():
        shutil.copytree(sdists, clone.work / "sdists")
    return clone
