"""A store of test runs: the same patch on the same task is tested once, whoever asks.

Rollouts of a group often end in equal patches, and each is a process of its own. A run is a file, named by
what it depends on; who needs it while another process makes it waits for that one. The store's slots say how many
are made at once.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from lightning_smith.contracts.task import Grade
from lightning_smith.core.files import dump_json, write_atomic

_LOCKS = 3
"""Hexadecimal digits of a key that choose its lock: a fixed number of lock files, which are never deleted."""

_WAIT_S = 0.03


class Check(StrEnum):
    """What stands behind the verdict that a patch solves its task, beside the statuses of its tests."""

    CANARY = "canary"
    """The canary tests read right."""
    MIXED = "mixed"
    """In altered runs the altered tests failed, and the others passed again (`assignments.py`)."""
    HARNESS = "harness"
    """SWE-smith's own harness says the same."""


@dataclass(frozen=True)
class TestRun:
    """A task's tests, run on a patched tree."""

    __test__ = False  # pytest would take this for a class of tests

    log: bytes
    """What the official harnesses can read: markers, pytest's output without the canary, exit status."""
    returncode: int | None
    """pytest's exit status without the canary's failing test; None if it was ended or never started."""
    timed_out: bool
    wall_s: float
    canary_ok: bool
    """Whether both canary tests and the exit status read right."""
    tampered: bool
    """Whether the run claims what cannot be believed."""
    applied: bool
    """Whether the patch could be applied; without that no test ran."""
    canary: str = ""
    """`canary.Reading`; empty if none ran."""
    grade: Grade = Grade.ALL
    """Which of the task's tests decide."""
    pytest: bool = True
    """Whether the log is one of pytest, else of unittest."""
    harness_resolved: bool | None = None
    """What SWE-smith's own harness makes of the log; None if it was not asked."""
    variant: int | None = None
    """Which variant of altered tests ran; None for the tests as written."""
    checks: tuple[Check, ...] = ()
    unrepeated: tuple[str, ...] = ()
    """Tests that passed, but not when they were run again."""
    note: str = ""
    """Why what seemed solved is not."""
    hits: tuple[str, ...] = ()
    """What the scan found in the patch (`scan.Hit`)."""
    cached: bool = False
    """Whether an earlier run is told again; `wall_s` is that one's."""


class RunStore(Protocol):
    """Gives the test run of a key."""

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        """Return what `make` returns, or returned when the same key was asked for before."""
        ...


class FreshRuns:
    """RunStore that keeps nothing: whoever compares runs of one patch must not be told the first one again."""

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        return make()


class GradeStore:
    """RunStore: test runs in files below a folder.

    Args:
        folder: made if absent; shared by all processes that grade.
        slots: runs made at once on this folder.
    """

    def __init__(self, folder: Path, *, slots: int = 2) -> None:
        self._folder, self._slots = folder, slots

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        """Return the stored run of `key` (hexadecimal), else what `make` returns, which is stored."""
        if (found := self.get(key)) is not None:
            return found
        with _locked(self._folder / "locks" / key[:_LOCKS]):
            if (found := self.get(key)) is not None:
                return found
            with self._slot():
                made = make()
            self._put(key, made)
            return made

    def get(self, key: str) -> TestRun | None:
        """Return the stored run, or None."""
        try:
            head, _, log = self._path(key).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        values = json.loads(head)
        typed = {"log": log, "grade": Grade(values["grade"])}
        return TestRun(**{**values, **typed, "cached": True})

    def _put(self, key: str, run: TestRun) -> None:
        head = asdict(replace(run, log=b""))
        for name in ("log", "cached", "checks", "unrepeated", "note", "hits"):
            del head[name]
        write_atomic(self._path(key), dump_json(head).encode() + b"\n" + run.log)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.run"

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold one of the store's slots."""
        paths = [self._folder / "slots" / str(number) for number in range(self._slots)]
        with ExitStack() as held:
            while not any(_try_lock(path, held) for path in paths):
                time.sleep(_WAIT_S)
            yield


def _try_lock(path: Path, held: ExitStack) -> bool:
    """Lock a file until `held` closes, if nobody has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = held.enter_context(path.open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel releases it with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
