"""A bound on the number of processes that holds for root as well, where the machine has control groups for us.

The kernel does not apply RLIMIT_NPROC to root, so a command that forks without end could bring a machine down on
which the harness runs as root, as in many containers and virtual machines.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

_PREFIX = "lightning-smith-"
_numbers = itertools.count()


class ProcessGroup:
    """A control group for the processes of one command; without effect where none can be made.

    `add` a process before it has children, `close` when all of them are gone.
    """

    def __init__(self, processes: int) -> None:
        self._folder: Path | None = None
        parent = _parent()
        if parent is None:
            return
        folder = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            self._folder = folder
            (folder / "pids.max").write_text(str(processes))

    def add(self, pid: int) -> None:
        """Move a process into the group."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the group."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()


@functools.cache
def _parent() -> Path | None:
    """Return where groups with a bound on processes can be made: version 1 has a folder for that, version 2 one for
    all.

    Only root is asked: the kernel applies RLIMIT_NPROC to the others.
    """
    if os.getuid() != 0:
        return None
    for parent in (ROOT / "pids", ROOT):
        probe = parent / f"{_PREFIX}{os.getpid()}-probe"
        try:
            probe.mkdir()
        except OSError:
            continue
        usable = (probe / "pids.max").exists()
        with contextlib.suppress(OSError):
            probe.rmdir()
        if usable:
            _sweep(parent)
            return parent
    return None


def _sweep(parent: Path) -> None:
    """Remove the groups that processes left which were killed; a group in use cannot be removed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
