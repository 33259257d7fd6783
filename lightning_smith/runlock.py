"""One workflow a folder: a lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lightning_smith.errors import UserError


class RunLock:
    """An exclusive lock on a folder, held for the life of this process.

    Snakemake's own lock files outlive a killed process and must be removed by hand; this one needs no unlocking.
    """

    def __init__(self, folder: Path | str) -> None:
        """Take the lock; raises UserError with the process id of the run that holds it."""
        path = Path(folder) / "lightning-smith.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._handle)
            raise UserError(
                f"another run holds this folder (process {holder}, {Path.cwd()}): wait for it, stop it with "
                f"`kill {holder}`, or use a second clone"
            ) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the folder back before the process ends."""
        os.close(self._handle)
