"""Seeded draws that stay put, and apart: no two draws of one seed have anything to do with each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum


class Draw(StrEnum):
    """What is drawn. The name goes into the hash: with the same one, a draw would prefer what another preferred."""

    PROBED = "tasks to probe"
    VALIDATION = "tasks to validate on"
    MIXED = "tasks to train on, solved in some rollouts"
    ALL_FAILED = "tasks to train on, solved in none"
    TRAIN_ORDER = "order of the training tasks"
    VALIDATION_ORDER = "order of the validation tasks"


def seeded_order(names: Iterable[str], seed: int, draw: Draw) -> list[str]:
    """Return names in a random order that depends on `seed`, on the draw and on each name alone.

    A longer draw extends a shorter one, and a name that is added or removed moves no other, so that raising a
    count in the configuration repeats no rollout.
    """
    return sorted(names, key=lambda name: hashlib.sha256(f"{draw}\0{seed}\0{name}".encode()).digest())
