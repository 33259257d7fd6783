"""What a filter decided about each row, as a small file that the next filter reads.

`<data>/filters/<filter>.tsv` has the columns instance_id, decision (kept or dropped) and reason (empty for
kept rows), sorted by instance id: one row for each row that the filter before kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lightning_smith.core.errors import UserError
from lightning_smith.core.tables import read_table, write_table
from lightning_smith.release.columns import iter_batches_unordered

HEADER = ("instance_id", "decision", "reason")
KEPT, DROPPED = "kept", "dropped"

MAX_ID_BYTES = 200
"""Files are named by ids, with something after them, and may have 255."""
_ID = re.compile(r"[A-Za-z0-9][^\s/\x00-\x1f\x7f]*")


@dataclass(frozen=True)
class Decisions:
    """One filter's decisions: for each instance id None (kept), or the reason for which it was dropped."""

    filter: str
    reasons: dict[str, str | None]

    @property
    def kept(self) -> set[str]:
        """Ids that go on to the next filter."""
        return {instance_id for instance_id, reason in self.reasons.items() if reason is None}

    @property
    def dropped(self) -> int:
        """How many rows the filter dropped."""
        return sum(reason is not None for reason in self.reasons.values())


def decide(
    name: str,
    shards: Iterable[Path],
    columns: Sequence[str],
    reasons: Callable[[pa.RecordBatch], list[str | None]],
    previous: Decisions | None,
    *,
    cheap_batches: bool = False,
) -> Decisions:
    """Run a filter over the rows that `previous` kept (None: over every row).

    `columns` are what `reasons` reads. With `cheap_batches` it is asked about other rows too, of which nothing is kept,
    and lists of strings may be dictionary-encoded: cheaper where most of a shard is in them. Raise UserError for a bad
    shard, for an id that two rows share, and if `previous` kept a row that the shards do not have.
    """
    decided: dict[str, str | None] = {}
    wanted = None if previous is None else previous.kept
    read = tuple(dict.fromkeys(("instance_id", *columns)))
    batches = iter_batches_unordered(
        shards, read, wanted=wanted, whole_batches=cheap_batches, encoded_lists=cheap_batches
    )
    for rows in batches:
        for name_of_row, reason in zip(rows.column("instance_id").to_pylist(), reasons(rows), strict=True):
            if wanted is None or name_of_row in wanted:
                decided[name_of_row] = reason
    found = Decisions(name, decided)
    return found if previous is None else decisions_on(found, previous)


def decisions_on(decisions: Decisions, previous: Decisions) -> Decisions:
    """Of a filter's decisions those about the rows that `previous` kept. Raise UserError if it kept any other row."""
    kept = previous.kept
    if absent := kept - decisions.reasons.keys():
        raise UserError(
            f"the filter {previous.filter} kept {min(absent)}, which no shard holds: "
            "its decisions were made from other shards, so run it again"
        )
    return Decisions(decisions.filter, {name: decisions.reasons[name] for name in kept})


def write_decisions(path: Path, decisions: Decisions) -> None:
    """Write the file; the same decisions give the same bytes, in whatever order they were made."""
    rows = []
    for instance_id, reason in sorted(decisions.reasons.items()):
        if not _ID.fullmatch(instance_id) or len(instance_id.encode()) > MAX_ID_BYTES:
            raise UserError(
                f"instance id {instance_id!r} can name no file and no branch: begin it with a letter or digit, without "
                f"blanks, control characters and slashes, and with at most {MAX_ID_BYTES} bytes"
            )
        rows.append((instance_id, KEPT if reason is None else DROPPED, reason or ""))
    write_table(path, HEADER, rows)


def read_decisions(path: Path) -> Decisions:
    """Read such a file; the filter's name is the file's. Raise UserError, with the line, if it is damaged."""
    reasons: dict[str, str | None] = {}
    rows = read_table(path, HEADER, remedy="delete the file and run the filter again")
    for number, (instance_id, decision, reason) in rows:
        if decision not in (KEPT, DROPPED) or (decision == KEPT) != (not reason):
            raise UserError(f"{path} line {number} is damaged: delete the file and run the filter again")
        reasons[instance_id] = reason or None
    if len(reasons) != len(rows):
        raise UserError(f"{path} names an instance twice: delete it and run the filter again")
    return Decisions(path.stem, reasons)
