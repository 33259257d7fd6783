"""A tiny experiment, tests/data/<name>.yaml, in a clone of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

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
            except psutil.Error:
                continue
            if words in line and (str(self.folder) in line or cwd.startswith(str(self.folder))):
                found.append(process)
        return found
