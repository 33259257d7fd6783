"""Workspaces and graders in Docker containers: the task's image without network, capabilities and history.

    sandbox = DockerSandbox.find(connect(), folder)
    image = sandbox.prepare(image_name)
    with ContainerWorkspace(sandbox, image, instance_id, scratch) as workspace:
        observation = workspace.execute("ls", timeout_s=10)
        patch = workspace.diff()

The harness speaks to a container's executor (`container.py`) over the container's standard input and output, through
the daemon. When the harness dies, its input ends, and with it the executor and the container.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from docker.errors import APIError, DockerException
from docker.types import Ulimit

from lightning_smith.core.errors import UserError
from lightning_smith.core.process import stage_lock
from lightning_smith.images.daemon import Daemon, DockerError
from lightning_smith.images.docker import DockerImage, DockerImages
from lightning_smith.sandbox import executor
from lightning_smith.sandbox.bwrap import ResourceLimits, SandboxError
from lightning_smith.sandbox.container import (
    ANSWER_S,
    FACTS,
    Container,
    ContainerTestTree,
    ImageFacts,
    SocketStream,
    look_into,
)

_PYTHONS = ("/opt/agent/bin/python3", "/opt/miniconda3/bin/python3", "/opt/miniconda3/bin/python")

# The first of the image's interpreters that is there becomes the container's first process.
_START = (
    'for python in $PYTHONS "$(command -v python3)" "$(command -v python)"; do '
    '[ -x "$python" ] && exec "$python" -I -S -c "$1" "$2"; done; echo "it has no Python" >&2; exit 127'
)
# The executor's source comes first on its standard input: in its arguments, `ps` would show all of it.
_LOAD = """\
import os
size, source = int(os.read(0, 10)), b""
while len(source) < size:
    source += os.read(0, size - len(source))
exec(compile(source, "executor", "exec"), {"__name__": "__main__"})
"""

_CAPABILITIES = ["KILL", "SETGID", "SETPCAP", "SETUID"]
"""What the executor keeps, and the commands do not: see `executor.py`."""

_LAYERED = ("overlay", "aufs")
"""Storage drivers that copy a file of a lower layer before it is changed."""

_READ_ONLY = (
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),  # Docker's own
    *("/proc/mtrr", "/proc/pressure"),
)
"""What belongs to the machine and, in the eyes of the kernel, to root, whom commands are even without capabilities."""

CPUS = 2.0
"""Seconds of processor time a second that a container may take, where the daemon has as many processors."""

_SCRIPT_MB = 64
"""Room for a command's script, on a mount that no image has: an existing folder would keep its own mode."""

_FRAME_BYTES = 8
_STDERR = 2


@dataclass(frozen=True)
class DockerSandbox:
    """How containers are made.

    Attributes: `images` finds images, `limits` bounds each container, and `cpus` its processor time a second.
    """

    images: DockerImages
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    cpus: float = CPUS

    @property
    def daemon(self) -> Daemon:
        return self.images.daemon

    @classmethod
    def find(cls, daemon: Daemon, copies: Path, limits: ResourceLimits | None = None) -> Self:
        """Containers of a daemon; `copies` is where repositories of images go. UserError if it cannot be trusted.

        Under a storage driver without layers, commands could edit in place the very files that the executor has
        mapped. What killed processes of this machine left at the daemon is removed.
        """
        with daemon.asked("describe itself"):
            info = daemon.api.info()
        driver = info["Driver"]
        if not any(name in driver for name in _LAYERED):
            raise UserError(
                f"the Docker daemon at {daemon.host} stores images with {driver}, under which a container's "
                "programs can be changed while they run: start it with --storage-driver overlay2"
            )
        daemon.sweep()
        # The daemon refuses every container that asks for more processors than there are.
        return cls(DockerImages(daemon, copies), limits or ResourceLimits(), min(CPUS, info["NCPU"]))

    def prepare(self, image_name: str) -> DockerImage:
        """Find an image, copy its repository and look into it, once. Raise UserError if it cannot serve."""
        image = self.images[image_name]
        self.facts(image)
        return image

    def facts(self, image: DockerImage) -> ImageFacts:
        """Return what holds of an image: asked of a container of it once, and kept beside the copy of its
        repository.
        """
        known = image.folder / FACTS
        if not known.exists():
            with stage_lock(image.folder, "facts", wait_s=300):
                if not known.exists():
                    self._look(image).write(known)
        return ImageFacts.read(known)

    @contextlib.contextmanager
    def test_tree(self, image: DockerImage, revision: str) -> Iterator[ContainerTestTree]:
        """A tree at a revision of an image, in a container of its own."""
        container, facts = self.workbench(image)
        with container:
            container.lay_out(revision)
            yield ContainerTestTree(container, facts)

    def workbench(self, image: DockerImage) -> tuple[Container, ImageFacts]:
        facts = self.facts(image)
        return self._open(image), facts

    def _look(self, image: DockerImage) -> ImageFacts:
        with self._open(image) as container:
            return look_into(container, image.found.environment)

    def _open(self, image: DockerImage) -> Container:
        with _as_sandbox_error():
            stream = self._start(image)
        return Container(image, self.limits, stream)

    def _start(self, image: DockerImage) -> _Attached:
        """Return a new container whose executor has been given its source."""
        limits = self.limits
        settings = self.daemon.api.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=_CAPABILITIES,
            security_opt=["no-new-privileges"],
            pids_limit=limits.processes + 1,
            mem_limit=f"{limits.memory_mb}m",
            memswap_limit=f"{limits.memory_mb}m",
            nano_cpus=int(self.cpus * 1e9),
            tmpfs={
                "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={limits.tmp_mb}m",
                str(Path(executor.SCRIPT).parent): f"rw,noexec,nosuid,nodev,mode=1777,size={_SCRIPT_MB}m",
            },
            shm_size=f"{limits.tmp_mb}m",
            ulimits=[Ulimit(name="core", soft=0, hard=0)],
            log_config={"type": "none"},
            auto_remove=True,
            init=False,
            ipc_mode="private",
        )
        settings["ReadonlyPaths"] = list(_READ_ONLY)
        container = self.daemon.create(
            image=image.found.id,
            entrypoint=["/bin/sh", "-c", _START, "executor"],
            command=[_LOAD, image.found.user],
            environment={"PYTHONS": " ".join(_PYTHONS)},
            host_config=settings,
            hostname="testbed",
            network_disabled=True,
            stdin_open=True,
            tty=False,
            user="0:0",
            working_dir="/",
        )
        try:
            with self.daemon.asked(f"attach to a container of {image.image_name}"):
                stream = _Attached(self.daemon, container)
        except BaseException:
            with contextlib.suppress(DockerError):
                self.daemon.remove(container)
            raise
        try:
            with self.daemon.asked(f"start a container of {image.image_name}"):
                try:
                    self.daemon.api.start(container)
                except APIError as error:
                    if "/bin/sh" in str(error.explanation):
                        raise SandboxError(f"the image {image.image_name} has no /bin/sh") from None
                    raise
            source = _source()
            stream.send(b"%10d" % len(source) + source, ANSWER_S)
        except BaseException:
            stream.close()
            raise
        return stream


class _Attached(SocketStream):
    """Standard streams of a container, through the daemon; `Stream` of `container.py`."""

    def __init__(self, daemon: Daemon, container: str) -> None:
        self._daemon, self.name = daemon, container
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        # The response object must live as long as its socket.
        self._response = daemon.api.attach_socket(container, params=wanted)
        super().__init__(getattr(self._response, "_sock", self._response))
        self._raw = bytearray()
        self._errors = bytearray()

    def _take(self, data: bytes) -> None:
        """Take the daemon's frames apart: stream (1 byte), 3 bytes, length (4 bytes), content."""
        self._raw += data
        at = 0
        while len(self._raw) - at >= _FRAME_BYTES:
            size = int.from_bytes(self._raw[at + 4 : at + _FRAME_BYTES], "big")
            end = at + _FRAME_BYTES + size
            if len(self._raw) < end:
                break
            content = self._raw[at + _FRAME_BYTES : end]
            if self._raw[at] == _STDERR:
                self._errors += content
            else:
                self._answers.add(content)
            at = end
        del self._raw[:at]
        del self._errors[:-4096]

    def said(self) -> str:
        """Return the last line that the executor wrote to its standard error."""
        return self._errors.decode("utf-8", "replace").strip().split("\n")[-1]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._response.close()
        # Should the daemon not answer, the container still ends by itself, since its input has ended.
        with contextlib.suppress(DockerError):
            self._daemon.remove(self.name)


@contextlib.contextmanager
def _as_sandbox_error():
    try:
        yield
    except TimeoutError:
        raise SandboxError("the Docker daemon did not answer in time") from None
    except (DockerError, DockerException, OSError) as error:
        raise SandboxError(str(error)) from None


@functools.cache
def _source() -> bytes:
    return Path(executor.__file__).read_bytes()
