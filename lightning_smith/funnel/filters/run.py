"""What the scripts of all filters share."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from lightning_smith.funnel.filters.decisions import Decisions, decide, read_decisions, write_decisions


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """The flags `--shards`, `--previous` and `--out`."""
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    parser.add_argument(
        "--previous", type=Path, help="decisions of the filter before; left out: every row is read"
    )
    parser.add_argument("--out", type=Path, required=True, help="decisions: <folder>/<filter>.tsv")


def run_row_filter(row_filter: ModuleType, description: str | None, argv: list[str] | None) -> None:
    """The whole script of a filter module that needs nothing but the rows: parse the common flags and run it."""
    parser = argparse.ArgumentParser(description=description)
    add_common_flags(parser)
    args = parser.parse_args(argv)
    run_filter(row_filter.NAME, args.shards, row_filter.COLUMNS, row_filter.reasons, args.previous, args.out)


def run_filter(
    name: str,
    shards: Iterable[Path],
    columns: Sequence[str],
    reasons: Callable[[pa.RecordBatch], list[str | None]],
    previous: Path | None,
    out: Path,
    *,
    cheap_batches: bool = False,
) -> Decisions:
    """Decide, write the decisions, and print one line of counts."""
    before = read_decisions(previous) if previous else None
    decisions = decide(name, shards, columns, reasons, before, cheap_batches=cheap_batches)
    return write_with_counts(decisions, out)


def write_with_counts(decisions: Decisions, out: Path) -> Decisions:
    """Write the decisions, and print one line of counts."""
    write_decisions(out, decisions)
    dropped = Counter(reason for reason in decisions.reasons.values() if reason is not None)
    counts = "".join(f", {count} {reason}" for reason, count in sorted(dropped.items()))
    print(f"filter {decisions.filter}: {len(decisions.reasons)} rows, {len(decisions.kept)} kept{counts}")
    return decisions
