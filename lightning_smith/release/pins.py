"""The committed table of shards: what size and sha256 each file of a pinned data set has.

`assets/release/shards.tsv` has the columns source (`<data set>@<revision>`), file, bytes and sha256; lines that start
with `#` say what it is. A shard that is listed must match; one that is not is checked against what the hub announces.
`scripts/release/record_shards.py` adds the rows of a finished download from the records that `download_shard` left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core import tables as core_tables
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_atomic

HEADER = ("source", "file", "bytes", "sha256")


@dataclass(frozen=True, order=True)
class ShardRow:
    """One file of one revision."""

    source: str
    file: str
    size: int
    """In bytes."""
    sha256: str


def read_table(path: Path) -> list[ShardRow]:
    """Return the rows of the table. Raise UserError for a damaged line, and for a file that two rows speak of."""
    rows: dict[tuple[str, str], ShardRow] = {}
    for number, (source, file, size, sha256) in core_tables.read_table(
        path, HEADER, remedy=f"git checkout {path}"
    ):
        if not size.isdigit():
            raise UserError(f"{path} line {number} has no size: correct it")
        row = ShardRow(source, file, int(size), sha256)
        if rows.setdefault((source, file), row) != row:
            raise UserError(
                f"{path} line {number} says something else of {file} of {source} than a line above"
            )
    return list(rows.values())


def known_sha256(rows: Iterable[ShardRow], source: str, file: str) -> str | None:
    """Return the hash of a file, None if the table does not list it."""
    return next((row.sha256 for row in rows if (row.source, row.file) == (source, file)), None)


def add_records(table: Path, records: Iterable[Path]) -> int:
    """Add what was recorded of downloads to the table; returns how many rows are new.

    Raise UserError for a record that differs from the table: one of the two is wrong.
    """
    rows = {(row.source, row.file): row for row in read_table(table)}
    before = len(rows)
    for path in records:
        row = _row(read_json(path), path)
        if rows.setdefault((row.source, row.file), row) != row:
            raise UserError(
                f"{path} has other bytes or another sha256 than {table} for {row.file} of {row.source}: "
                "fetch it again, or remove the row if it is wrong"
            )
    lines = table.read_text(encoding="utf-8").split("\n")
    notes = [line for line in lines if line.startswith("#")]
    body = ((row.source, row.file, row.size, row.sha256) for row in sorted(rows.values()))
    write_atomic(table, core_tables.table_text(HEADER, body, notes))
    return len(rows) - before


def _row(record: Any, path: Path) -> ShardRow:
    try:
        return ShardRow(record["source"], record["file"], int(record["bytes"]), record["sha256"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is no record of a download: run the rule download_shard again") from None
