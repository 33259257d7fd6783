"""From the decisions of all filters: the ledger, and the rows that survived.

The ledger `<data>/funnel.tsv` has the columns filter, kept, dropped and reason. Its first row is `release`:
every row read, none dropped, reason `-`. Then each filter in its order has one row for each of its reasons,
also for those that met no row. `dropped` is what that reason took, `kept` what was left after it, so that
kept + dropped of every row is kept of the row above. A filter's own kept is that of its last row, its own
dropped the sum over its rows (`totals`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lightning_smith.core.errors import UserError
from lightning_smith.core.tables import read_table, write_table
from lightning_smith.funnel.filters import REASONS_BY_FILTER
from lightning_smith.funnel.filters.decisions import Decisions
from lightning_smith.release.columns import SCHEMA, iter_batches, write_parquet

HEADER = ("filter", "kept", "dropped", "reason")
RELEASE = "release"
ROW_GROUP = 1000
"""Rows of the candidates written at a time, some 20 MB at 200 tests a row."""


@dataclass(frozen=True)
class FunnelRow:
    """One row of the ledger."""

    filter: str
    kept: int
    """Rows left after this reason."""
    dropped: int
    """Rows dropped for this reason."""
    reason: str


@dataclass(frozen=True)
class FilterTotal:
    """One filter, all its reasons together."""

    filter: str
    kept: int
    dropped: int


def funnel_rows(release_ids: set[str], filters: Sequence[Decisions]) -> list[FunnelRow]:
    """Return the ledger of filters that ran in this order over a release with these ids.

    Raise UserError if a filter did not decide about exactly the rows that were left for it, or gives a
    reason that it does not have.
    """
    rows = [FunnelRow(RELEASE, len(release_ids), 0, "-")]
    left = release_ids
    for decisions in filters:
        if decisions.reasons.keys() != left:
            odd = min(decisions.reasons.keys() ^ left)
            raise UserError(
                f"the decisions of filter {decisions.filter} do not fit the rows left for it (see {odd}): "
                "they were made from other shards, so run the filters again"
            )
        counts = Counter(reason for reason in decisions.reasons.values() if reason is not None)
        reasons = REASONS_BY_FILTER.get(decisions.filter, ())
        if strange := sorted(set(counts) - set(reasons)):
            raise UserError(f"filter {decisions.filter} gives the unknown reason {strange[0]!r}")
        kept = len(left)
        for reason in reasons:
            kept -= counts[reason]
            rows.append(FunnelRow(decisions.filter, kept, counts[reason], reason))
        left = decisions.kept
    return rows


def totals(rows: Iterable[FunnelRow]) -> list[FilterTotal]:
    """Kept and dropped of each filter, `release` first."""
    found: dict[str, FilterTotal] = {}
    for row in rows:
        before = found.get(row.filter)
        found[row.filter] = FilterTotal(row.filter, row.kept, row.dropped + (before.dropped if before else 0))
    return list(found.values())


def write_funnel(path: Path, rows: Iterable[FunnelRow]) -> None:
    """Write the ledger."""
    write_table(path, HEADER, ((row.filter, row.kept, row.dropped, row.reason) for row in rows))


def read_funnel(path: Path) -> list[FunnelRow]:
    """Read the ledger. Raise UserError if it is damaged or its counts do not add up."""
    remedy = "run scripts/funnel/collect_candidates.py again"
    rows: list[FunnelRow] = []
    for number, (name, kept, dropped, reason) in read_table(path, HEADER, remedy=remedy):
        try:
            rows.append(FunnelRow(name, int(kept), int(dropped), reason))
        except ValueError:
            raise UserError(f"{path} line {number} is damaged: {remedy}") from None
        if len(rows) > 1 and rows[-1].kept + rows[-1].dropped != rows[-2].kept:
            raise UserError(
                f"{path} line {number}: kept and dropped do not add up to the kept of the line above"
            )
    if not rows:
        raise UserError(f"{path} has no rows: {remedy}")
    return rows


def release_ids(shards: Iterable[Path]) -> set[str]:
    """Return every instance id of a release. Raise UserError if two rows share one."""
    return {name for batch in iter_batches(shards, ("instance_id",)) for name in batch.column(0).to_pylist()}


def write_candidates(path: Path, shards: Iterable[Path], kept: set[str]) -> None:
    """Write the full rows of `kept`, sorted by instance id, holding a row group of them at a time.

    Survivors pass through a temporary file beside `path`, which is then read in the order of the ids: neither the
    order of the shards nor that of their rows shows in the result.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.unsorted")
    try:
        places = _spill(scratch, shards, kept)
        write_parquet(path, SCHEMA, _in_order(scratch, [places[name] for name in sorted(places)]))
    finally:
        scratch.unlink(missing_ok=True)


def _spill(scratch: Path, shards: Iterable[Path], kept: set[str]) -> dict[str, int]:
    """Write the rows of `kept` as an Arrow file of one batch a row; returns the number of each id's batch."""
    places: dict[str, int] = {}
    with pa.OSFile(str(scratch), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for batch in iter_batches(shards, SCHEMA.names, wanted=kept):
            for row, name in enumerate(batch.column("instance_id").to_pylist()):
                writer.write_batch(batch.slice(row, 1))
                places[name] = len(places)
    return places


def _in_order(scratch: Path, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file with these numbers, in this order."""
    # No memory map: what it had read would count as this process's memory.
    with pa.OSFile(str(scratch)) as source, pa.ipc.open_file(source) as file:
        for start in range(0, len(places), ROW_GROUP):
            yield pa.concat_batches([file.get_batch(place) for place in places[start : start + ROW_GROUP]])
