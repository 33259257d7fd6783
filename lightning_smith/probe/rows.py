"""Rows of tasks from a parquet file or JSON lines, whichever a stage is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl
from lightning_smith.release.columns import iter_batches, read_tasks


def read_ids(path: Path) -> list[str]:
    """Instance ids in the order of the file. Raise UserError for one that is there twice."""
    if path.suffix == ".parquet":
        batches = iter_batches([path], ["instance_id"])
        return [instance_id for batch in batches for instance_id in batch.column(0).to_pylist()]
    return [row["instance_id"] for row in read_rows(path)]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield whole rows, one at a time. Raise UserError for an instance that is there twice."""
    if path.suffix == ".parquet":
        yield from (task.to_row() for task in read_tasks([path]))
        return
    seen: set[str] = set()
    for number, row in enumerate(read_jsonl(path), start=1):
        instance_id = row.get("instance_id")
        if not isinstance(instance_id, str):
            raise UserError(f"{path}: row {number} has no instance_id")
        if instance_id in seen:
            raise UserError(f"{path} holds instance {instance_id} twice: remove one of the rows")
        seen.add(instance_id)
        yield row


def select_rows(path: Path, wanted: list[str]) -> list[dict[str, Any]]:
    """Return the rows of `wanted`, in that order. Raise UserError if one is absent."""
    names = set(wanted)
    rows = {row["instance_id"]: row for row in read_rows(path) if row["instance_id"] in names}
    if missing := [name for name in wanted if name not in rows]:
        raise UserError(f"{path} lacks {missing[0]} ({len(missing)} instances in all): it is of another run")
    return [rows[name] for name in wanted]
