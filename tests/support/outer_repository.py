"""A sandbox in which a git repository lies above the tree, as in images that someone made a repository of."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.sandbox.bwrap import Bwrap, Completed


@dataclass(frozen=True)
class InRepository(Bwrap):
    """Bubblewrap with a repository's folder at /.git, where git finds it from /testbed."""

    repository: Path = Path()

    @classmethod
    def around(cls, sandbox: Bwrap, folder: Path) -> InRepository:
        """The same sandbox, with the repository made below `folder`."""
        subprocess.run(["git", "init", "--quiet", str(folder / "outer")], check=True)
        found = cls(sandbox.program, sandbox.testbed_python, sandbox.limits, folder / "outer/.git")
        (folder / "tree").mkdir()
        above = "git rev-parse --show-toplevel"
        done = found.run(above, tree=folder / "tree", environment={}, timeout_s=60)
        assert (done.returncode, done.output) == (0, b"/\n"), done.output
        return found

    def run(self, command: str | bytes, **options: Any) -> Completed:
        folders = {**(options.pop("folders", None) or {}), "/.git": self.repository}
        # As in a container, where the tree is on the file system of what is above it.
        environment = {**options.pop("environment"), "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"}
        return super().run(command, folders=folders, environment=environment, **options)
