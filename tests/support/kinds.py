"""The kinds of workspace that tests run in: bubblewrap on this machine, a Docker daemon's containers, a pod's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tiny_image

from lightning_smith.sandbox.bwrap import ResourceLimits
from lightning_smith.sandbox.container import ContainerWorkspace
from lightning_smith.sandbox.workspace import BwrapWorkspace

KINDS = ("bwrap", "docker", "pod")


@dataclass(frozen=True)
class Kind:
    """A kind of workspace with the tiny image; `sandbox` and `image` are what `run_tests` takes."""

    name: str
    sandbox: Any
    image: Any
    with_limits: Callable[[ResourceLimits], Any]
    """Makes another sandbox of the kind."""
    disk: Path
    """A folder on the file system that its trees lie on."""

    def limited(self, limits: ResourceLimits) -> Kind:
        """The same kind with other limits."""
        return replace(self, sandbox=self.with_limits(limits))

    def open(self, scratch: Path, limits: ResourceLimits | None = None, **options: Any) -> Any:
        """A workspace at the tiny task's branch."""
        sandbox = self.sandbox if limits is None else self.with_limits(limits)
        workspace = BwrapWorkspace if self.name == "bwrap" else ContainerWorkspace
        return workspace(sandbox, self.image, tiny_image.TASK, scratch, **options)
