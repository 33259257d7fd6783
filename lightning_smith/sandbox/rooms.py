"""The kinds of rooms that rollouts run in, chosen by the setting `workspace` of a stage."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import TESTBED_PYTHON
from lightning_smith.repositories.catalogue import ImageCatalogue
from lightning_smith.repositories.local import LocalImage
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.container import ContainerRoom
from lightning_smith.sandbox.pod import PodSandbox
from lightning_smith.sandbox.trees import Sandbox
from lightning_smith.sandbox.workspace import BwrapWorkspace


class Room(Protocol):
    """Images of one kind, and workspaces and graders for them."""

    @property
    def sandbox(self) -> Sandbox:
        """What `run_tests` takes."""
        ...

    def image(self, image_name: str) -> Revisions:
        """Return the image of a name. Raise UserError if there is none that can serve."""
        ...

    def workspace(
        self, image: Any, branch: str, scratch: Path, *, keep_bytes: int
    ) -> AbstractContextManager[Any]:
        """Return a workspace of its own at a branch of such an image."""
        ...


class BwrapRoom:
    """Bubblewrap, over the local images below a folder."""

    def __init__(self, images: Path, testbed_python: Path) -> None:
        self._images = ImageCatalogue(images)
        self.sandbox = Bwrap.find(testbed_python)

    def image(self, image_name: str) -> LocalImage:
        return self._images[image_name]

    def workspace(self, image: LocalImage, branch: str, scratch: Path, *, keep_bytes: int) -> BwrapWorkspace:
        return BwrapWorkspace(self.sandbox, image, branch, scratch, keep_bytes=keep_bytes)


def open_room(workspace: str, images: Path, testbed_python: Path = TESTBED_PYTHON) -> Room:
    """Rooms of a kind, with arguments as in `StageSettings`. Raise UserError if this machine lacks what they need."""
    if workspace == "bwrap":
        return BwrapRoom(images, testbed_python)
    if workspace == "docker":
        # Only here: environments without Docker's client run rollouts too.
        from lightning_smith.images.daemon import connect
        from lightning_smith.sandbox.docker import DockerSandbox

        return ContainerRoom(DockerSandbox.find(connect(), images))
    if workspace == "pod":
        return ContainerRoom(PodSandbox.find(images))
    raise UserError(f"the workspace {workspace!r} is unknown: it is bwrap, docker or pod")
