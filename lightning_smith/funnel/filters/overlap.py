"""Drops rows of repositories, or on files, that the evaluation set is about. Off in the published configuration."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

NAME = "overlap"
COLUMNS = ("instance_id",)
SAME_FILE = "same_file"
SAME_REPOSITORY = "same_repository"
REASONS = (SAME_FILE, SAME_REPOSITORY)

LEVELS = {"file": (SAME_FILE,), "repository": (SAME_FILE, SAME_REPOSITORY)}
"""What each value of the configuration key drops."""


def reasons(batch: pa.RecordBatch, overlapping: Mapping[str, str], level: str) -> list[str | None]:
    """One of REASONS for each row to drop; `overlapping` as `contamination.overlapping_tasks` returns it."""
    found: list[str | None] = []
    for instance_id in batch.column("instance_id").to_pylist():
        kind = overlapping.get(instance_id)
        reason = None if kind is None else SAME_FILE if kind == "file" else SAME_REPOSITORY
        found.append(reason if reason in LEVELS[level] else None)
    return found
