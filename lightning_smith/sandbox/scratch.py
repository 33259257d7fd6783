"""Private folders for the trees of a rollout or a test run, gone when it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lightning_smith.core.process import process_stat

MEMORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 2**30

_PREFIX = "lightning-smith-"


class Scratch:
    """Context manager of a folder that only this user can enter, with a short path.

    It lies in memory (/dev/shm) if that has 1 GiB free and lets programs run, else below `fallback`, else in
    the system's temporary folder. What a killed process left there is removed first: names hold the pid.
    """

    def __init__(self, fallback: Path | None = None) -> None:
        self.parent = _parent(fallback)
        self.path: Path | None = None

    def __enter__(self) -> Path:
        sweep(self.parent)
        prefix = f"{_PREFIX}{os.getpid()}-{_start_ticks(os.getpid())}-"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self.parent))
        return self.path

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            remove_tree(self.path)


def _parent(fallback: Path | None) -> Path:
    if os.access(MEMORY, os.W_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= MEMORY_NEEDED_BYTES and not room.f_flag & os.ST_NOEXEC:
            return MEMORY
    if fallback is None:
        return Path(tempfile.gettempdir())
    fallback.mkdir(parents=True, exist_ok=True)
    return fallback


def sweep(parent: Path) -> None:
    """Remove this user's scratch folders whose process is gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        parts = folder.name.removeprefix(_PREFIX).split("-")
        try:
            alive = _start_ticks(int(parts[0])) == int(parts[1])
            mine = folder.stat().st_uid == os.getuid()
        except (ValueError, IndexError, OSError):  # not a name of ours, or gone in the meantime
            continue
        if mine and not alive:
            remove_tree(folder)


def _start_ticks(pid: int) -> int:
    """Return when a process started, in the kernel's ticks; -1 if there is none. Tells it from a later one's pid."""
    stat = process_stat(pid)
    return stat.start_ticks if stat else -1


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever a command did to it: permissions taken, nesting too deep for Python."""
    if not folder.exists():
        return
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)
