"""The kinds of workspace that tests run in: bubblewrap on this machine, and containers of a Docker daemon."""

from __future__ import annotations

from dataclasses import dataclass, replace
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

    def limited(self, limits: ResourceLimits) -> Kind:
        """The same kind with other limits."""
        if self.name == "docker":
            return replace(self, sandbox=DockerSandbox(self.sandbox.images, limits))
        return replace(self, sandbox=Bwrap(self.sandbox.program, self.sandbox.testbed_python, limits))

    def open(self, scratch: Path, limits: ResourceLimits | None = None, **options: Any) -> Any:
        """A workspace at the tiny task's branch."""
        sandbox = self.sandbox if limits is None else self.limited(limits).sandbox
        workspace = DockerWorkspace if self.name == "docker" else BwrapWorkspace
        return workspace(sandbox, self.image, tiny_image.TASK, scratch, **options)
