"""Workspace in a Docker container: the task's image without network, without capabilities and without its history.

    sandbox = DockerSandbox(connect(), folder)
    image = sandbox.images[image_name]
    with DockerWorkspace(sandbox, image, instance_id, scratch) as workspace:
        observation = workspace.execute("ls", timeout_s=10)
        patch = workspace.diff()

The container's first process is `executor.py`, which the harness speaks to over the container's standard input and
output, through the daemon. When the harness dies, its input ends, and with it the executor and the container.

The image's branch is laid out by the harness: the files in which it differs from what the image has checked out are
written and removed, and `/testbed/.git` is removed, before the first command. What is removed from an image's layer
cannot be brought back from inside: the layers below are not mounted, and mounting takes a capability.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import posixpath
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from docker.errors import APIError, DockerException
from docker.types import Ulimit

from lightning_smith.errors import UserError
from lightning_smith.files import read_json, write_json
from lightning_smith.images.daemon import Daemon, DockerError
from lightning_smith.images.docker import TREE, DockerImage, DockerImages
from lightning_smith.images.sdist import EXECUTABLE, REGULAR, SYMLINK, TreeFile
from lightning_smith.process import stage_lock
from lightning_smith.rollout import executor
from lightning_smith.rollout.bwrap import Completed, Limit, ResourceLimits, SandboxError
from lightning_smith.rollout.diff import (
    APPLY_TIMEOUT_S,
    EMPTY_GIT_FOLDER,
    MAX_DIFF_BYTES,
    Applied,
    Stamp,
    apply_script,
    choose_parts,
    write_diff,
)
from lightning_smith.rollout.scratch import remove_tree
from lightning_smith.rollout.seccomp import filter_program
from lightning_smith.rollout.workspace import Observation

_PYTHONS = ("/opt/agent/bin/python3", "/opt/miniconda3/bin/python3", "/opt/miniconda3/bin/python")
_CONDA = "/opt/miniconda3/bin/activate"
_ENVIRONMENT = "testbed"

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
_ACTIVATE = f". {_CONDA} >/dev/null 2>&1 && conda activate {_ENVIRONMENT} >/dev/null 2>&1; exec env -0"
_IMPORT_PATHS = "python -c 'import sys; sys.stdout.write(chr(0).join(sys.path[1:]))'"
_USUAL_ROOTS = (".", "src", "lib")
"""An editable installation may import from elsewhere than sys.path says."""

_CAPABILITIES = ["KILL", "SETGID", "SETPCAP", "SETUID"]
"""What the executor keeps, and the commands do not: see `executor.py`."""

_LAYERED = ("overlay", "aufs")
"""Storage drivers that copy a file of a lower layer before it is changed."""

_READ_ONLY = (
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),  # Docker's own
    *("/proc/mtrr", "/proc/pressure"),
)
"""What belongs to the machine and, in the eyes of the kernel, to root, whom commands are even without capabilities."""

_SCRIPT_MB = 64
"""Room for a command's script, on a mount that no image has: an existing folder would keep its own mode."""

_ANSWER_S = 60.0
"""How long the executor may take beyond a command's own limit; above its own grace for what survives a KILL."""

_MAX_ANSWER_BYTES = 1 << 30
_MODES = {EXECUTABLE: stat.S_IFREG | 0o755, SYMLINK: stat.S_IFLNK | 0o777}
_FRAME_BYTES = 8
_STDERR = 2


@dataclass(frozen=True)
class DockerSandbox:
    """How containers are made.

    Attributes: `images` finds images, `limits` bounds each container, and `cpus` its processor time a second.
    """

    images: DockerImages
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    cpus: float = 2.0

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
            driver = daemon.api.info()["Driver"]
        if not any(name in driver for name in _LAYERED):
            raise UserError(
                f"the Docker daemon at {daemon.host} stores images with {driver}, under which a container's "
                "programs can be changed while they run: start it with --storage-driver overlay2"
            )
        daemon.sweep()
        return cls(DockerImages(daemon, copies), limits or ResourceLimits())

    def prepare(self, image_name: str) -> DockerImage:
        """Find an image, copy its repository and look into it, once; UserError if it cannot serve."""
        image = self.images[image_name]
        self.facts(image)
        return image

    def facts(self, image: DockerImage) -> ImageFacts:
        """What holds of an image: asked of a container of it once, and kept beside the copy of its repository."""
        known = image.folder / "facts.json"
        if not known.exists():
            with stage_lock(image.folder, "facts", wait_s=300):
                if not known.exists():
                    write_json(known, asdict(self._look(image)))
        return ImageFacts(**read_json(known))

    @contextlib.contextmanager
    def test_tree(self, image: DockerImage, revision: str) -> Iterator[ContainerTestTree]:
        """A tree at a revision of an image, in a container of its own."""
        facts = self.facts(image)
        with Container(self, image) as container:
            container.lay_out(revision)
            yield ContainerTestTree(container, facts)

    def _look(self, image: DockerImage) -> ImageFacts:
        with Container(self, image) as container:
            plain = {
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LANG": "C.UTF-8",
                **image.found.environment,
                "HOME": container.home,
                "TERM": "dumb",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONHASHSEED": "0",
                "TZ": "UTC",
            }

            def ask(script: str, environment: Mapping[str, str]) -> list[str]:
                done = container.run(script, environment=environment, timeout_s=120)
                text = done.output.decode("utf-8", "replace")
                if done.returncode != 0:
                    raise UserError(
                        f"the environment of the image {image.image_name} cannot be activated "
                        f"({text.strip().rpartition(chr(10))[2]})"
                    )
                return text.split("\0")

            variables = (text.partition("=") for text in ask(_ACTIVATE, plain))
            left_out = ("", "_", "PWD", "OLDPWD", "SHLVL")
            environment = {name: value for name, _, value in variables if name not in left_out}
            if container.run("command -v git", environment=environment, timeout_s=60).returncode != 0:
                raise UserError(
                    f"the image {image.image_name} has no git: patches could not be applied in it"
                )
            paths = (posixpath.relpath(path, TREE) for path in ask(_IMPORT_PATHS, environment) if path)
            inside = {path for path in paths if path.split("/")[0] != ".."}
            return ImageFacts(environment, sorted(inside | set(_USUAL_ROOTS)))


@dataclass(frozen=True)
class ImageFacts:
    """What holds of an image."""

    environment: dict[str, str]
    """Variables of a command: the image's own and what activating its conda environment adds."""
    import_roots: list[str]
    """Folders of the tree that Python imports from, relative to it."""


class Container:
    """A running container of an image, with an executor that answers.

    Its errors are SandboxError: they are the machine's.
    """

    def __init__(self, sandbox: DockerSandbox, image: DockerImage) -> None:
        self._sandbox, self._image, self._daemon = sandbox, image, sandbox.daemon
        self._id: str | None = None
        self._stream: _Attached | None = None
        try:
            with _as_sandbox_error():
                self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        limits = self._sandbox.limits
        settings = self._daemon.api.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=_CAPABILITIES,
            security_opt=["no-new-privileges"],
            pids_limit=limits.processes + 1,
            mem_limit=f"{limits.memory_mb}m",
            memswap_limit=f"{limits.memory_mb}m",
            nano_cpus=int(self._sandbox.cpus * 1e9),
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
        self._id = self._daemon.create(
            image=self._image.found.id,
            entrypoint=["/bin/sh", "-c", _START, "executor"],
            command=[_LOAD, self._image.found.user],
            environment={"PYTHONS": " ".join(_PYTHONS)},
            host_config=settings,
            hostname="testbed",
            network_disabled=True,
            stdin_open=True,
            tty=False,
            user="0:0",
            working_dir="/",
        )
        with self._daemon.asked(f"attach to a container of {self._image.image_name}"):
            self._stream = _Attached(self._daemon, self._id)
        with self._daemon.asked(f"start a container of {self._image.image_name}"):
            try:
                self._daemon.api.start(self._id)
            except APIError as error:
                if "/bin/sh" in str(error.explanation):
                    raise SandboxError(f"the image {self._image.image_name} has no /bin/sh") from None
                raise
        source = _source()
        self._stream.send(b"%10d" % len(source) + source, _ANSWER_S)
        ready, _ = self._receive(_ANSWER_S)
        if ready["bash"] is None:
            raise SandboxError(f"the image {self._image.image_name} has no bash")
        self.home, self._bash = str(ready["home"]), str(ready["bash"])
        if (calls := filter_program(str(ready["machine"]))) is not None:
            self.ask("filter", calls)

    def ask(
        self, op: str, data: bytes = b"", timeout_s: float = _ANSWER_S, **request: Any
    ) -> tuple[dict[str, Any], bytes]:
        """One request to the executor and its answer."""
        if self._stream is None:
            raise SandboxError("the container is closed")
        try:
            with _as_sandbox_error():
                self._stream.send(executor.encode_frame({"op": op, **request}, data), timeout_s)
                return self._receive(timeout_s)
        except SandboxError:
            self.close()  # what is left of this conversation would be taken for the next answer
            raise

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        assert self._stream is not None
        answer, data = self._stream.receive(timeout_s)
        if answer is None:
            raise SandboxError(
                f"a container of {self._image.image_name} ended by itself"
                f" ({self._stream.said() or 'the kernel or an operator killed it'})"
            )
        if "error" in answer:
            raise SandboxError(f"in a container of {self._image.image_name}: {answer['error']}")
        return answer, data

    def run(
        self,
        command: str | bytes,
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        cpu_s: float | None = None,
        keep_bytes: int = 1_000_000,
        cwd: str = TREE,
    ) -> Completed:
        """Run a bash script of any length, with the arguments and the answer of `Bwrap.run`."""
        script = command.encode("utf-8", "replace") if isinstance(command, str) else command
        limits = self._sandbox.limits
        answer, output = self.ask(
            "run",
            script,
            timeout_s=timeout_s + _ANSWER_S,
            bash=self._bash,
            cwd=cwd,
            environment=dict(environment),
            keep_bytes=keep_bytes,
            cpu_s=cpu_s,
            limits={
                "memory_mb": limits.memory_mb,
                "file_mb": limits.file_mb,
                "min_free_mb": limits.min_free_mb,
                "min_free_files": limits.min_free_files,
            },
            limit_s=timeout_s,
        )
        return Completed.of(
            output,
            answer["dropped_bytes"],
            answer["returncode"],
            Limit(answer["limit"]) if answer["limit"] else None,
            answer["wall_s"],
            timeout_s,
            cpu_s,
            limits,
        )

    def write(self, files: Mapping[str, TreeFile], root: str = TREE) -> None:
        """Write files below `root` over whatever is there; no link is followed."""
        listed = [
            (path, _MODES.get(file.mode, stat.S_IFREG | 0o644), len(file.data))
            for path, file in files.items()
        ]
        self.ask("write", b"".join(file.data for file in files.values()), root=root, files=listed)

    def remove(self, paths: Iterable[str], root: str = TREE, *, prune: bool = False) -> None:
        """Remove files and folders below `root`; with `prune`, the folders above that are left empty as well."""
        self.ask("remove", root=root, paths=list(paths), prune=prune)

    def lay_out(self, revision: str) -> None:
        """Make the tree that of a revision, without its history, and remember every file of it."""
        changed = self._image.changed_files(revision)
        self.remove([".git"])
        self.remove([path for path, file in changed.items() if file is None], prune=True)
        self.write({path: file for path, file in changed.items() if file is not None})
        self.ask("remember", root=TREE)

    def changes(self) -> ContainerChanges:
        """What changed in the tree since it was laid out."""
        answer, _ = self.ask("changes", root=TREE)
        return ContainerChanges(self, answer)

    @property
    def id(self) -> str:
        """The daemon's name of it."""
        if self._id is None:
            raise SandboxError("the container is closed")
        return self._id

    def close(self) -> None:
        """Remove the container with all that runs in it; may be called twice."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        container, self._id = self._id, None
        if container is not None:
            # Should the daemon not answer, the container still ends by itself, since its input has ended.
            with contextlib.suppress(DockerError):
                self._daemon.remove(container)


class ContainerChanges:
    """ChangedFiles of a container's tree."""

    def __init__(self, container: Container, answer: dict[str, Any]) -> None:
        self._container = container
        self.stamps: dict[str, Stamp | None] = {}
        self._targets: dict[str, str] = {}
        self._existed = set(answer["gone"])
        for path, stamp, target, before in answer["changed"]:
            self.stamps[path] = Stamp(*stamp)
            self._targets[path] = target
            if before is not None:
                self._existed.add(path)
        self.stamps.update(dict.fromkeys(answer["gone"]))

    def existed(self, path: str) -> bool:
        return path in self._existed

    def target(self, path: str) -> str:
        return self._targets[path]

    def contents(self, paths: list[str]) -> Iterable[bytes]:
        regular = [path for path in paths if stat.S_ISREG(self._stamp(path).mode)]
        total = sum(self._stamp(path).size for path in regular)
        answer, data = self._container.ask("read", root=TREE, paths=regular, max_bytes=total)
        found: dict[str, bytes] = {}
        at = 0
        for path, size in zip(regular, answer["sizes"], strict=True):
            found[path] = data[at : at + size]
            at += size
        for path in paths:
            yield found[path] if path in found else os.fsencode(self._targets[path])

    def _stamp(self, path: str) -> Stamp:
        stamp = self.stamps[path]
        assert stamp is not None
        return stamp


class ContainerTestTree:
    """TestTree in a container. What a test run could be steered by from outside of the tree is the image's own."""

    def __init__(self, container: Container, facts: ImageFacts) -> None:
        self._container, self._environment = container, facts.environment
        self.import_roots = facts.import_roots

    def stamps(self) -> dict[str, Stamp]:
        answer, _ = self._container.ask("stamps", root=TREE)
        return {path: Stamp(*stamp) for path, stamp in answer["stamps"]}

    def write(self, path: str, file: TreeFile) -> None:
        self._container.write({path: file})

    def remove(self, path: str) -> None:
        self._container.remove([path])

    def apply(self, diff: bytes, skip: Callable[[str], bool]) -> Applied:
        wanted, dropped = choose_parts(diff, skip)
        if not wanted:
            return Applied(True, b"", dropped)
        harness = str(Path(executor.SCRIPT).parent)
        files = {f"git/{name}": content.encode() for name, content in EMPTY_GIT_FOLDER.items()}
        files["patch.diff"] = wanted
        self._container.write(
            {name: TreeFile(REGULAR, content) for name, content in files.items()}, root=harness
        )
        script = apply_script(f"{harness}/git", f"{harness}/patch.diff")
        done = self._container.run(script, environment=self._environment, timeout_s=APPLY_TIMEOUT_S)
        self._container.remove(["git", "patch.diff"], root=harness)
        return Applied(done.returncode == 0, done.output, dropped)

    def run(
        self,
        command: str,
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        cpu_s: float,
        keep_bytes: int,
    ) -> Completed:
        return self._container.run(
            command,
            environment={**self._environment, **environment},
            timeout_s=timeout_s,
            cpu_s=cpu_s,
            keep_bytes=keep_bytes,
        )


class DockerWorkspace:
    """Workspace in a container of its own.

    Args:
        image: the task's image, at whose branch `branch` the tree starts.
        scratch: an absent or empty folder, removed at the end: the harness's git folder.
        keep_bytes: bytes of output kept from its start, and as many from its end.
    """

    def __init__(
        self,
        sandbox: DockerSandbox,
        image: DockerImage,
        branch: str,
        scratch: Path,
        *,
        keep_bytes: int = 100_000,
        max_diff_bytes: int = MAX_DIFF_BYTES,
    ) -> None:
        self._image, self._scratch = image, scratch
        self._keep_bytes, self._max_diff_bytes = keep_bytes, max_diff_bytes
        self._diffs = 0
        self.left_out: Counter[str] = Counter()
        """What the last diff left out, by reason."""
        self._commit = image.commit(branch)
        self._environment = sandbox.facts(image).environment
        self.container = Container(sandbox, image)
        try:
            self.container.lay_out(branch)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, command: str, timeout_s: float) -> Observation:
        done = self.container.run(
            command, environment=self._environment, timeout_s=timeout_s, keep_bytes=self._keep_bytes
        )
        return Observation.of(done)

    def diff(self) -> bytes:
        self._diffs += 1
        taken = write_diff(
            self.container.changes(),
            self._image.repository,
            self._commit,
            self._scratch / f"diff-{self._diffs}",
            max_bytes=self._max_diff_bytes,
            untracked=True,
        )
        self.left_out = taken.left_out
        return taken.data

    def close(self) -> None:
        self.container.close()
        remove_tree(self._scratch)


class DockerRoom:
    """Containers, over the images of a daemon: see `kinds.Room`."""

    def __init__(self, sandbox: DockerSandbox) -> None:
        self.sandbox = sandbox

    def image(self, image_name: str) -> DockerImage:
        return self.sandbox.prepare(image_name)

    def workspace(
        self, image: DockerImage, branch: str, scratch: Path, *, keep_bytes: int
    ) -> DockerWorkspace:
        return DockerWorkspace(self.sandbox, image, branch, scratch, keep_bytes=keep_bytes)


class _Attached:
    """Standard streams of a container, through the daemon."""

    def __init__(self, daemon: Daemon, container: str) -> None:
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        # The response object must live as long as its socket.
        self._response = daemon.api.attach_socket(container, params=wanted)
        self._socket: socket.socket = getattr(self._response, "_sock", self._response)
        self._raw = bytearray()
        self._output = bytearray()
        self._errors = bytearray()

    def send(self, data: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any] | None, bytes]:
        """The next message of the executor; None at the end of the stream. TimeoutError if it takes longer."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            if (message := self._message()) is not None:
                return message
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = self._socket.recv(1 << 18)
            if not data:
                return None, b""
            self._raw += data
            self._split()

    def _split(self) -> None:
        """Take the daemon's frames apart: stream (1 byte), 3 bytes, length (4 bytes), content."""
        at = 0
        while len(self._raw) - at >= _FRAME_BYTES:
            size = int.from_bytes(self._raw[at + 4 : at + _FRAME_BYTES], "big")
            end = at + _FRAME_BYTES + size
            if len(self._raw) < end:
                break
            stream = self._errors if self._raw[at] == _STDERR else self._output
            stream += self._raw[at + _FRAME_BYTES : end]
            at = end
        del self._raw[:at]
        del self._errors[:-4096]

    def _message(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._output) < _FRAME_BYTES:
            return None
        sizes = int.from_bytes(self._output[:4], "big"), int.from_bytes(self._output[4:8], "big")
        end = _FRAME_BYTES + sum(sizes)
        if end > _MAX_ANSWER_BYTES:
            raise SandboxError(f"a container answers with {end:,} bytes")
        if len(self._output) < end:
            return None
        text = bytes(self._output[_FRAME_BYTES : _FRAME_BYTES + sizes[0]])
        data = bytes(self._output[_FRAME_BYTES + sizes[0] : end])
        del self._output[:end]
        return json.loads(text), data

    def said(self) -> str:
        """The last line that the executor wrote to its standard error."""
        return self._errors.decode("utf-8", "replace").strip().split("\n")[-1]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._response.close()


@contextlib.contextmanager
def _as_sandbox_error():
    try:
        yield
    except TimeoutError:
        raise SandboxError("Docker or the container's executor did not answer in time") from None
    except (DockerError, DockerException, OSError) as error:
        raise SandboxError(str(error)) from None


@functools.cache
def _source() -> bytes:
    return Path(executor.__file__).read_bytes()
