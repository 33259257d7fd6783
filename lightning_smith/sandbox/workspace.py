"""Where a rollout's commands run: the task's repository at the bug, and nothing else.

    with BwrapWorkspace(sandbox, image, instance_id, scratch) as workspace:
        observation = workspace.execute("ls", timeout_s=10)
        patch = workspace.diff()

The harness is on the outside: commands see neither its files nor its environment, and what leaves the
workspace is a diff.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from lightning_smith.core.closing import Closing
from lightning_smith.core.text import encodable
from lightning_smith.repositories.local import LocalImage
from lightning_smith.sandbox.bwrap import TREE, Bwrap, Completed
from lightning_smith.sandbox.diff import MAX_DIFF_BYTES, scan, take_diff
from lightning_smith.sandbox.scratch import remove_tree


@dataclass(frozen=True)
class Observation:
    """What came of one command."""

    output: bytes
    """Standard output and error, interleaved; if `dropped_bytes`, the gap is in the middle of it."""
    returncode: int
    """Exit status, 128 + signal; -1 if the harness ended the command."""
    timed_out: bool
    """Whether it was ended at its time limit; the exit status has no say in this (124 may be its own)."""
    stopped: str | None = None
    """Why the harness ended it: the end of the sentence "it ...", else None."""
    dropped_bytes: int = 0

    @classmethod
    def of(cls, done: Completed) -> Self:
        """Return what a sandbox says of a command."""
        returncode = -1 if done.returncode is None else done.returncode
        return cls(done.output, returncode, done.timed_out, done.stopped, done.dropped_bytes)


class Workspace(Protocol):
    """A place for one rollout. Its errors (UserError) are the machine's, never the policy's."""

    def execute(self, command: str, timeout_s: float) -> Observation:
        """Run a bash script of any length; nothing of it is left running afterwards."""
        ...

    def diff(self) -> bytes:
        """Return what the commands changed, as a patch; DiffRefusedError if that makes none."""
        ...

    def close(self) -> None:
        """Remove everything; may be called twice."""
        ...


class BwrapWorkspace(Closing):
    """Workspace in a folder of this machine; each command is a bubblewrap of its own.

    Args:
        image: the task's image, at whose branch `branch` the tree starts.
        scratch: an absent or empty folder, removed at the end: the tree, /tmp and the harness's git folder.
        keep_bytes: bytes of output kept from its start, and as many from its end.
    """

    def __init__(
        self,
        sandbox: Bwrap,
        image: LocalImage,
        branch: str,
        scratch: Path,
        *,
        keep_bytes: int = 100_000,
        max_diff_bytes: int = MAX_DIFF_BYTES,
    ) -> None:
        self._sandbox, self._image, self._scratch = sandbox, image, scratch
        self._keep_bytes, self._max_diff_bytes = keep_bytes, max_diff_bytes
        self.tree, self._tmp = scratch / "tree", scratch / "tmp"
        self._diffs = 0
        self.left_out: Counter[str] = Counter()
        """What the last diff left out, by reason."""
        self.in_submodules: tuple[str, ...] = ()
        """Of these, what lies in submodules."""
        try:
            self._commit = image.commit(branch)
            self._tmp.mkdir(parents=True)
            image.checkout(branch, self.tree)
            self._before = scan(self.tree)
        except BaseException:
            self.close()
            raise

    def execute(self, command: str, timeout_s: float) -> Observation:
        for folder in (self.tree, self._tmp):
            folder.chmod(0o755)  # the command before may have locked itself out
        done = self._sandbox.run(
            command,
            tree=self.tree,
            tmp=self._tmp,
            environment=python_environment(self._image),
            timeout_s=timeout_s,
            keep_bytes=self._keep_bytes,
        )
        return Observation.of(done)

    def diff(self) -> bytes:
        self._diffs += 1
        taken = take_diff(
            self.tree,
            self._before,
            self._image.repository,
            self._commit,
            self._scratch / f"diff-{self._diffs}",
            max_bytes=self._max_diff_bytes,
        )
        self.left_out, self.in_submodules = taken.left_out, taken.in_submodules
        return taken.data

    def close(self) -> None:
        remove_tree(self._scratch)


def python_environment(image: LocalImage) -> dict[str, str]:
    """Variables with which the image's package is imported from the tree, the same way on every machine."""
    return {
        "PYTHONPATH": ":".join(f"{TREE}/{part}".rstrip("/.") for part in image.pythonpath.split(":")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
    }


def observation_text(observation: Observation, chars: int) -> str:
    """Return what the policy reads of a command: exit status and `chars` characters of output, head and tail.

    `<returncode>0</returncode>\\n<output>\\n...</output>`. Bytes that are not UTF-8 show as U+FFFD. A command
    that the harness ended says so in its last line.
    """
    output = _cut(observation, chars)
    if observation.stopped is not None:
        newline = "" if not output or output.endswith("\n") else "\n"
        output += f"{newline}[stopped: it {observation.stopped}]\n"
    return f"<returncode>{observation.returncode}</returncode>\n<output>\n{output}</output>"


def _cut(observation: Observation, chars: int) -> str:
    middle = len(observation.output) // 2 if observation.dropped_bytes else len(observation.output)
    # Surrogates stand for single bytes, so that the bytes left out can be counted exactly.
    before = observation.output[:middle].decode("utf-8", "surrogateescape")
    after = observation.output[middle:].decode("utf-8", "surrogateescape")
    if not after and len(before) <= chars:
        return encodable(before)
    head, tail = before[: chars // 2], (after or before)[-(chars - chars // 2) :]
    shown = len((head + tail).encode("utf-8", "surrogateescape"))
    left_out = len(observation.output) + observation.dropped_bytes - shown
    return f"{encodable(head)}\n[... {left_out} bytes left out ...]\n{encodable(tail)}"
