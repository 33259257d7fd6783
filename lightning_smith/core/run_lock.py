"""One workflow a folder: a lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.process import lock_holder, open_lock, try_lock


class RunLock:
    """An exclusive lock on a folder, held for the life of this process.

    Snakemake's own lock files outlive a killed process and must be removed by hand; this one needs no unlocking.
    """

    def __init__(self, folder: Path | str) -> None:
        """Take the lock. Raise UserError with the process id of the run that holds it."""
        self._handle = open_lock(Path(folder) / "lightning-smith.lock")
        if not try_lock(self._handle):
            holder = lock_holder(self._handle)
            os.close(self._handle)
            raise UserError(
                f"another run holds this folder (process {holder}, {Path.cwd()}): wait for it, stop it with "
                f"`kill {holder}`, or use a second clone"
            )

    def release(self) -> None:
        """Give the folder back before the process ends."""
        os.close(self._handle)
