"""Containers with an executor in them, however that is reached: workspaces and graders of Docker and of pods.

    container = Container(image, limits, stream)
    container.lay_out(branch)
    done = container.run("ls", environment=facts.environment, timeout_s=10)

A container's first process is `executor.py`. The harness has one conversation with it, over a `Stream`; when that ends,
by the harness's will or by its death, so do the executor and the container.

The image's branch is laid out by the harness: the files in which it differs from what the image has checked out are
written and removed, and `/testbed/.git` is removed, before the first command. What is removed from an image's layer
cannot be brought back from inside: the layers below are not mounted, and mounting takes a capability.
"""

from __future__ import annotations

import itertools
import json
import os
import posixpath
import socket
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from lightning_smith.core.closing import Closing
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.repositories.revisions import MAIN, Revisions
from lightning_smith.repositories.tree_files import EXECUTABLE, REGULAR, SYMLINK, TreeFile
from lightning_smith.sandbox import executor
from lightning_smith.sandbox.bwrap import TREE, Completed, Limit, ResourceLimits, SandboxError
from lightning_smith.sandbox.diff import (
    APPLY_TIMEOUT_S,
    EMPTY_GIT_FOLDER,
    MAX_DIFF_BYTES,
    SUBMODULE,
    Applied,
    DiffRefusedError,
    Entry,
    Stamp,
    apply_script,
    choose_parts,
    git_mode,
    store_blobs,
    tracked_entries,
    write_diff,
)
from lightning_smith.sandbox.scratch import remove_tree
from lightning_smith.sandbox.seccomp import filter_program
from lightning_smith.sandbox.trees import ContainerSandbox
from lightning_smith.sandbox.workspace import Observation

ANSWER_S = 60.0
"""How long the executor may take beyond a command's own limit; above its own grace for what survives a KILL."""

_CONDA = "/opt/miniconda3/bin/activate"
_ENVIRONMENT = "testbed"
_ACTIVATE = f". {_CONDA} >/dev/null 2>&1 && conda activate {_ENVIRONMENT} >/dev/null 2>&1; exec env -0"
_IMPORT_PATHS = "python -c 'import sys; sys.stdout.write(chr(0).join(sys.path[1:]))'"
_USUAL_ROOTS = (".", "src", "lib")
"""An editable installation may import from elsewhere than sys.path says."""

_MAX_ANSWER_BYTES = 1 << 30
_INSPECT_S = 600.0
"""How long looking at every file of an image's tree may take."""

_MODES = {EXECUTABLE: stat.S_IFREG | 0o755, SYMLINK: stat.S_IFLNK | 0o777}
_HEADER_BYTES = 8


class Stream(Protocol):
    """What carries the conversation with one executor. Its OSErrors, TimeoutError among them, are the machine's."""

    name: str
    """How the container is known to what runs it."""

    def send(self, data: bytes, timeout_s: float) -> None: ...

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes] | None:
        """Return the executor's next message; None at the end of the stream."""
        ...

    def said(self) -> str:
        """Return the executor's last words about its end, if any were heard."""
        ...

    def close(self) -> None:
        """End the conversation, and the container with it."""
        ...


class Answers:
    """Takes bytes as they come and gives the messages in them, as `executor.encode_frame` made them."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def add(self, data: bytes | bytearray) -> None:
        self._waiting += data

    def take(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next message; None if it is not whole yet."""
        if len(self._waiting) < _HEADER_BYTES:
            return None
        sizes = int.from_bytes(self._waiting[:4], "big"), int.from_bytes(self._waiting[4:8], "big")
        end = _HEADER_BYTES + sum(sizes)
        if end > _MAX_ANSWER_BYTES:
            raise SandboxError(f"a container answers with {end:,} bytes")
        if len(self._waiting) < end:
            return None
        text = bytes(self._waiting[_HEADER_BYTES : _HEADER_BYTES + sizes[0]])
        data = bytes(self._waiting[_HEADER_BYTES + sizes[0] : end])
        del self._waiting[:end]
        return json.loads(text), data


class SocketStream:
    """What streams over a socket have in common: `send` and `receive` of `Stream`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._answers = connection, Answers()

    def send(self, data: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes] | None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            if (message := self._answers.take()) is not None:
                return message
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = self._socket.recv(1 << 18)
            if not data:
                return None
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Give the executor's part of what came to `_answers`."""
        self._answers.add(data)


@dataclass(frozen=True)
class ImageFacts:
    """What holds of an image."""

    environment: dict[str, str]
    """Variables of a command: the image's own and what activating its conda environment adds."""
    import_roots: list[str]
    """Folders of the tree that Python imports from, relative to it."""
    found: dict[str, Entry | None]
    """What the tree has in the place of `main`'s entries, where that differs; the contents are in the repository.

    Git has converted files at checkout (line ends, `$Id$`, encodings), or the image's maker has changed them.
    """

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the inverse of `write`."""
        about = read_json(path)
        found = {path: entry and Entry(*entry) for path, entry in about["found"].items()}
        return cls(about["environment"], about["import_roots"], found)

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        write_json(path, asdict(self))


FACTS = "image_facts.json"
"""The file with an image's facts, beside the copy of its repository."""


class Container(Closing):
    """A running container of an image, with an executor that answers over `stream`, which is closed with it.

    Its errors are SandboxError: they are the machine's.
    """

    def __init__(self, image: Revisions, limits: ResourceLimits, stream: Stream) -> None:
        self.image, self._limits, self.image_name = image, limits, image.image_name
        self._stream: Stream | None = stream
        self.name = stream.name
        try:
            with self._answering():
                ready, _ = self._receive(stream, ANSWER_S)
            if ready["bash"] is None:
                raise SandboxError(f"the image {image.image_name} has no bash")
            self.home, self._bash, self.user = str(ready["home"]), str(ready["bash"]), str(ready["user"])
            self.environment: dict[str, str] = ready["environment"]
            """The executor's own variables."""
            if (calls := filter_program(str(ready["machine"]))) is not None:
                self.ask("filter", calls)
        except BaseException:
            self.close()
            raise

    def ask(
        self, op: str, data: bytes = b"", timeout_s: float = ANSWER_S, **request: Any
    ) -> tuple[dict[str, Any], bytes]:
        """One request to the executor and its answer."""
        stream = self._stream
        if stream is None:
            raise SandboxError("the container is closed")
        try:
            with self._answering():
                stream.send(executor.encode_frame({"op": op, **request}, data), timeout_s)
                return self._receive(stream, timeout_s)
        except SandboxError:
            self.close()  # what is left of this conversation would be taken for the next answer
            raise

    def _receive(self, stream: Stream, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        received = stream.receive(timeout_s)
        if received is None:
            raise SandboxError(
                f"a container of {self.image_name} ended by itself"
                f" ({stream.said() or 'the kernel or an operator killed it'})"
            )
        if "error" in received[0]:
            raise SandboxError(f"in a container of {self.image_name}: {received[0]['error']}")
        return received

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise SandboxError(
                f"a container of {self.image_name}, or what runs it, did not answer in time"
            ) from None
        except OSError as error:
            raise SandboxError(f"a container of {self.image_name} went away: {error}") from None

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
        limits = self._limits
        answer, output = self.ask(
            "run",
            script,
            timeout_s=timeout_s + ANSWER_S,
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

    def read(self, paths: list[str], *, max_bytes: int, timeout_s: float = ANSWER_S) -> list[bytes]:
        """Contents of regular files of the tree, in the order of `paths`; they may have `max_bytes` in all."""
        answer, data = self.ask("read", timeout_s=timeout_s, root=TREE, paths=paths, max_bytes=max_bytes)
        ends = list(itertools.accumulate(answer["sizes"], initial=0))
        return [data[start:end] for start, end in itertools.pairwise(ends)]

    def lay_out(self, revision: str) -> frozenset[str]:
        """Make the tree that of a revision, without its history, and remember every file of it.

        Returns the paths in which the revision differs from `main`: these are as it has them, byte for byte.
        """
        changed = self.image.changed_files(revision)
        self.remove([".git"])
        self.remove([path for path, file in changed.items() if file is None], prune=True)
        self.write({path: file for path, file in changed.items() if file is not None})
        self.ask("remember", root=TREE)
        return frozenset(changed)

    def changes(self) -> ContainerChanges:
        """Return what changed in the tree since it was laid out; DiffRefusedError if that is more than can be
        listed.
        """
        answer, _ = self.ask("changes", root=TREE)
        if answer.get("too_many"):
            raise DiffRefusedError(
                f"the names of the changed files take more than {executor.MAX_CHANGED_NAMES_BYTES >> 20} MB"
            )
        return ContainerChanges(self, answer)

    def close(self) -> None:
        """End the container with all that runs in it; may be called twice."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def look_into(container: Container, variables: Mapping[str, str]) -> ImageFacts:
    """Ask a container about its image, whose own variables are given. Raise UserError if the image cannot serve."""
    name = container.image_name
    found_entries = _found_entries(container)
    plain = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        **variables,
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
                f"the environment of the image {name} cannot be activated "
                f"({text.strip().rpartition(chr(10))[2]})"
            )
        return text.split("\0")

    found = (text.partition("=") for text in ask(_ACTIVATE, plain))
    left_out = ("", "_", "PWD", "OLDPWD", "SHLVL")
    environment = {name: value for name, _, value in found if name not in left_out}
    if container.run("command -v git", environment=environment, timeout_s=60).returncode != 0:
        raise UserError(f"the image {name} has no git: patches could not be applied in it")
    paths = (posixpath.relpath(path, TREE) for path in ask(_IMPORT_PATHS, environment) if path)
    inside = {path for path in paths if path.split("/")[0] != ".."}
    return ImageFacts(environment, sorted(inside | set(_USUAL_ROOTS)), found_entries)


def _found_entries(container: Container) -> dict[str, Entry | None]:
    """`ImageFacts.found` of a container in which nothing has run. Raise UserError if its commands may not change the
    tree.
    """
    image = container.image
    answer, _ = container.ask("inspect", root=TREE, timeout_s=_INSPECT_S)
    tracked = {
        path: entry
        for path, entry in tracked_entries(image.repository, image.commit(MAIN)).items()
        if entry.mode != SUBMODULE
    }
    for path, owner, is_folder in answer["others"]:
        if is_folder or path in tracked:
            raise UserError(
                f"{posixpath.join(TREE, path).rstrip('/')} in the image {image.image_name} belongs to user {owner}, "
                f"and commands run as {container.user}, who may not change it: build the image again with `RUN chown "
                f"-R {container.user} {TREE}` before its USER line, or with `USER {owner}`"
            )
    there = {path: (Entry(git_mode(mode), blob), target) for path, mode, blob, target in answer["files"]}
    found: dict[str, Entry | None] = {path: None for path in tracked if path not in there}
    differing = [path for path, entry in tracked.items() if path in there and there[path][0] != entry]
    regular = [path for path in differing if there[path][0].mode != SYMLINK]
    contents = [os.fsencode(there[path][1]) for path in differing if there[path][0].mode == SYMLINK]
    contents += container.read(regular, max_bytes=_MAX_ANSWER_BYTES, timeout_s=_INSPECT_S)
    with tempfile.TemporaryDirectory() as folder:
        store_blobs(image.repository, Path(folder) / "blobs", contents)
    return found | {path: there[path][0] for path in differing}


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
        contents = self._container.read(regular, max_bytes=total)
        found = dict(zip(regular, contents, strict=True))
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
            return Applied(True, b"", dropped, empty=True)
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


class Workbenches(Protocol):
    """A sandbox whose workspaces are containers."""

    def workbench(self, image: Any) -> tuple[Container, ImageFacts]:
        """Return a container with the tree as its image has it, and what holds of the image."""
        ...


class ContainerWorkspace(Closing):
    """Workspace in a container of its own.

    Args:
        image: the task's image, at whose branch `branch` the tree starts.
        scratch: an absent or empty folder, removed at the end: the harness's git folder.
        keep_bytes: bytes of output kept from its start, and as many from its end.
    """

    def __init__(
        self,
        sandbox: Workbenches,
        image: Revisions,
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
        self.in_submodules: tuple[str, ...] = ()
        """Of these, what lies in submodules."""
        self._commit = image.commit(branch)
        self.container, facts = sandbox.workbench(image)
        self._environment = facts.environment
        try:
            own = self.container.lay_out(branch)
        except BaseException:
            self.close()
            raise
        self._found = {path: entry for path, entry in facts.found.items() if path not in own}

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
            found=self._found,
        )
        self.left_out, self.in_submodules = taken.left_out, taken.in_submodules
        return taken.data

    def close(self) -> None:
        self.container.close()
        remove_tree(self._scratch)


class Containers(Workbenches, ContainerSandbox, Protocol):
    """A sandbox of containers, with images of its own."""

    def prepare(self, image_name: str) -> Any:
        """Return the image of a name, its repository ready. Raise UserError if there is none that can serve."""
        ...


class ContainerRoom:
    """Rooms in containers: see `kinds.Room`."""

    def __init__(self, sandbox: Containers) -> None:
        self.sandbox = sandbox

    def image(self, image_name: str) -> Any:
        return self.sandbox.prepare(image_name)

    def workspace(self, image: Any, branch: str, scratch: Path, *, keep_bytes: int) -> ContainerWorkspace:
        return ContainerWorkspace(self.sandbox, image, branch, scratch, keep_bytes=keep_bytes)
