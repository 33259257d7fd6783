"""Workspaces and graders in the containers of one pod, whose harness is a container beside them.

    prepare(FOLDER, image_name, digest)                 # before the containers start, by root with CAP_CHOWN

    sandbox = PodSandbox.find(FOLDER)                   # in the harness
    image = sandbox.prepare(image_name)
    with ContainerWorkspace(sandbox, image, instance_id, scratch) as workspace:
        observation = workspace.execute("ls", timeout_s=10)

What the pod must provide:

- Three containers of one image. `harness` runs as user `executor.OWN_USER`, sees FOLDER, and has the image's /testbed
  as it is. `workbench` and `grader` each see their own folder of FOLDER, at a path of at most 100 bytes, and nothing
  else that another one sees: no other volume, no process namespace.
- First process of these two: `executor.py --listen <its folder>/socket <the image's user>`, started as root with the
  capabilities KILL, SETGID, SETPCAP and SETUID, no others, and with no-new-privileges.
- Each of the two has volumes in memory of its own at /tmp, /dev/shm and /run/task, limits of memory and processes as in
  `ResourceLimits`, the host name `testbed`, and the image's variables without any of the pod's services or secrets.
- A container whose executor has ended is started again, with a fresh file system: one executor serves one workspace or
  one test tree. What its volumes still hold the next executor removes. A grading takes up to four trees, one after
  the other, the last two in an order drawn by lot; each waits up to `wait_s` for its executor, since a kubelet delays
  the second restart by 10 s, the third by 20 s.
- No network for `workbench` and `grader` other than a loopback interface.

An executor accepts one connection and removes its socket. If anything else took that connection, the harness finds
nobody to speak to, and says so; who answers it is the executor's user, whom no command can become.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.repositories.bare import GIT_FOLDER, check_repository, make_bare
from lightning_smith.repositories.names import image_key
from lightning_smith.repositories.revisions import TEST_COMMAND, Revisions
from lightning_smith.sandbox.bwrap import ResourceLimits, SandboxError
from lightning_smith.sandbox.container import (
    FACTS,
    Container,
    ContainerTestTree,
    ImageFacts,
    SocketStream,
    look_into,
)
from lightning_smith.sandbox.executor import MAX_SOCKET_PATH_BYTES, OWN_USER

WORKBENCH, GRADER = "workbench", "grader"
SOCKET = "socket"

WAIT_S = 180.0
"""How long an executor may take to come: its image is there, but restarts are delayed."""

NAME_REMEDY = "give pod.prepare the image_name of the pod's tasks, not the tag that runs"

_PAUSE_S = 0.02
_POD_VARIABLES = ("HOSTNAME", "HOME", "TERM", "KUBERNETES_")
"""Beginnings of variables that a container has and its image has not."""


def prepare(folder: Path, image_name: str, digest: str) -> None:
    """Make the folder that the containers of a pod share parts of: nobody but executors and harness may enter it.

    `image_name` is what the tasks call their image, not the tag that it was prepared under; `digest` is that of the
    configuration of the image that runs, `sha256:<hex>`, as `DockerImage` has it.
    """
    about = folder / "image" / "image.json"
    for path in (folder, folder / WORKBENCH, folder / GRADER, about.parent):
        path.mkdir(exist_ok=True)
        path.chmod(0o700)
    write_json(about, {"image_name": image_name, "digest": digest})
    for path in (about, about.parent, folder / WORKBENCH, folder / GRADER, folder):
        os.chown(path, OWN_USER, OWN_USER)


@dataclass(frozen=True)
class PodImage(Revisions):
    """The image that the pod's containers run, with the repository of the harness's own copy."""

    image_name: str
    digest: str
    folder: Path
    """Holds `repository.git`, whose objects are those at /testbed."""
    test_command: tuple[str, ...] = TEST_COMMAND

    @property
    def repository(self) -> Path:
        return self.folder / "repository.git"


@dataclass(frozen=True)
class PodSandbox:
    """The containers beside the harness.

    Attributes: `folder` is what `prepare` made, `root` where the harness sees the image's files, `limits` what commands
    are told, the pod having set the same, and `wait_s` how long an executor may take to come.
    """

    folder: Path
    root: Path = Path("/")
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    wait_s: float = WAIT_S

    @classmethod
    def find(cls, folder: Path, root: Path = Path("/"), limits: ResourceLimits | None = None) -> Self:
        """Return the pod around this process. Raise UserError if `folder` is not one of a pod's."""
        if not (folder / "image" / "image.json").is_file():
            raise UserError(
                f"{folder} is no folder of a pod ({folder}/image/image.json is missing or not to be read): rollouts in "
                "pods are started by the cluster's jobs"
            )
        longest = max(len(os.fsencode(_socket(folder, role))) for role in (WORKBENCH, GRADER))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise UserError(
                f"{folder} is too long for sockets, whose paths have at most {MAX_SOCKET_PATH_BYTES} bytes (they "
                f"would have {longest}): mount it elsewhere"
            )
        return cls(folder, root, limits or ResourceLimits())

    def prepare(self, image_name: str) -> PodImage:
        """Return the image of the pod, its repository ready. Raise UserError if it is another one or cannot serve."""
        folder = self.folder / "image"
        image = PodImage(**read_json(folder / "image.json"), folder=folder)
        if image_key(image.image_name) != image_key(image_name):
            raise UserError(
                f"the containers of this pod run {image.image_name}, and not {image_name}: {NAME_REMEDY}"
            )
        if not (image.repository / "packed-refs").is_file():
            check_repository(lambda path: self._seen(path).is_dir(), image.image_name)
            shutil.rmtree(image.repository, ignore_errors=True)
            make_bare(self._seen(GIT_FOLDER), image.repository, image.image_name, move=False)
        return image

    @contextlib.contextmanager
    def test_tree(self, image: PodImage, revision: str) -> Iterator[ContainerTestTree]:
        """A tree at a revision of the image, in a grader that nothing has run in."""
        container, facts = self._open(image, GRADER)
        with container:
            container.lay_out(revision)
            yield ContainerTestTree(container, facts)

    def workbench(self, image: PodImage) -> tuple[Container, ImageFacts]:
        return self._open(image, WORKBENCH)

    def _open(self, image: PodImage, role: str) -> tuple[Container, ImageFacts]:
        container = Container(image, self.limits, _Connection(_socket(self.folder, role), self.wait_s))
        try:
            return container, self._facts(image, container)
        except BaseException:
            container.close()
            raise

    def _facts(self, image: PodImage, container: Container) -> ImageFacts:
        """Return what holds of the image: asked of the first container, before anything else runs in it."""
        known = image.folder / FACTS
        if not known.exists():
            own = {
                name: value
                for name, value in container.environment.items()
                if not name.startswith(_POD_VARIABLES)
            }
            look_into(container, own).write(known)
        return ImageFacts.read(known)

    def _seen(self, path: str) -> Path:
        """Return where the harness sees a file of the image."""
        return self.root / path.lstrip("/")


class _Connection(SocketStream):
    """The one connection of an executor; `Stream` of `container.py`."""

    def __init__(self, path: Path, wait_s: float) -> None:
        self.name = str(path)
        super().__init__(_connect(path, wait_s))

    def said(self) -> str:
        return f"{self.name} was its socket, and its last words are in its container's log"

    def close(self) -> None:
        self._socket.close()


def _socket(folder: Path, role: str) -> Path:
    return (folder / role / SOCKET).absolute()


def _connect(path: Path, wait_s: float) -> socket.socket:
    """Connect to the executor that listens at `path`, or will within `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            connection.connect(str(path))
            _check_peer(connection, path)
            return connection
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError):
            connection.close()  # it has not come yet, or has been taken
        except OSError as error:
            connection.close()
            raise SandboxError(
                f"the executor at {path} cannot be reached ({error.strerror}): the harness must run as user {OWN_USER}"
            ) from None
        except BaseException:
            connection.close()
            raise
        if time.monotonic() > deadline_s:
            raise SandboxError(
                f"no executor listened at {path} within {wait_s:.0f} s: its container is not running, as its log and "
                "its events may say, or something else took the one connection that it accepts"
            )
        time.sleep(_PAUSE_S)


def _check_peer(connection: socket.socket, path: Path) -> None:
    """SandboxError if who listened there was not the executor's user when it began to."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("iII", credentials)
    if user != OWN_USER:
        raise SandboxError(f"user {user} answers at {path}, and not the executor's ({OWN_USER})")
