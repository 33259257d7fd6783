"""Which of the patches that pass are tested by mixed runs (`assignments.py`), which cost several test runs each.

    audit = Audit(store_folder / "audit", share=0.05)
    audit.due(key, hits)     # whether this one is
    audit.found()            # results were forged: from now on every one is

Every patch with a hit of the scan (`scan.py`) is, and a share of the others, drawn by lot. The lots of a patch stay the
same, so that neither a kill nor a second rollout with the same patch draws again, and nobody outside of the harness
can know them. Forged results are the sign of a way that the scan may not see: after them every patch is tested.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sized
from pathlib import Path
from random import Random

_SECRET_BYTES = 32


class Audit:
    """The audit of all gradings that share a folder.

    Args:
        folder: made if absent, out of reach of any sandbox; shared by all processes that grade.
        share: of the passing patches without a hit, 0 to 1.
    """

    def __init__(self, folder: Path, share: float) -> None:
        self._folder, self._share = folder, share

    def due(self, key: str, hits: Sized) -> bool:
        """Return whether the passing patch is tested by mixed runs; `key` names its test run in the store."""
        return bool(hits) or self.raised or self._lot(key) < self._share

    @property
    def raised(self) -> bool:
        """Whether results were forged, so that every passing patch is tested."""
        return (self._folder / "forged").exists()

    def found(self) -> None:
        """Test every passing patch from now on, in all processes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "forged").touch()

    def chance(self, key: str) -> Random:
        """Lots for the runs of a patch, the same whenever it is asked for: a kill draws none again."""
        return Random(hmac.new(self._secret(), f"runs {key}".encode(), hashlib.sha256).digest())

    def _lot(self, key: str) -> float:
        """Return a number in [0, 1) that follows from the key and a secret of the folder."""
        digest = hmac.new(self._secret(), key.encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:7], "big") / 2**56

    def _secret(self) -> bytes:
        path = self._folder / "secret"
        while True:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                self._folder.mkdir(parents=True, exist_ok=True)
            mine = self._folder / f"secret.{os.getpid()}.{secrets.token_hex(4)}"
            mine.write_bytes(secrets.token_bytes(_SECRET_BYTES))
            try:
                os.link(mine, path)  # whole, and by one process alone
            except FileExistsError:
                pass
            finally:
                mine.unlink()
