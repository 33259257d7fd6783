"""Seeded draws that stay put: the same seed and names give the same order on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def seeded_order(names: Iterable[str], seed: int) -> list[str]:
    """Names in a random order that depends on `seed` and on each name alone.

    A longer draw extends a shorter one, and a name that is added or removed moves no other, so that raising a
    count in the configuration repeats no rollout.
    """
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())
