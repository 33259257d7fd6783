"""The kinds of workspace that tests run in: bubblewrap on this machine, and containers of a Docker daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_image

from lightning_smith.rollout.bwrap import Bwrap, ResourceLimits
from lightning_smith.rollout.docker import DockerSandbox, DockerWorkspace
from lightning_smith.rollout.workspace import BwrapWorkspace


@dataclass(frozen=True)
class Kind:
    """A kind of workspace with the tiny image; `sandbox` and `image` are what `run_tests` takes."""

    name: str
    sandbox: Any
    image: Any

    def open(self, scratch: Path, limits: ResourceLimits | None = None, **options: Any) -> Any:
        """A workspace at the tiny task's branch."""
        if self.name == "docker":
            sandbox = self.sandbox if limits is None else DockerSandbox(self.sandbox.images, limits)
            return DockerWorkspace(sandbox, self.image, tiny_image.TASK, scratch, **options)
        sandbox = self.sandbox
        if limits is not None:
            sandbox = Bwrap(sandbox.program, sandbox.testbed_python, limits)
        return BwrapWorkspace(sandbox, self.image, tiny_image.TASK, scratch, **options)
