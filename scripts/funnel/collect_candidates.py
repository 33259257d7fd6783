"""Write the funnel's ledger and the full rows that survived every filter."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.funnel.filters.decisions import read_decisions
from lightning_smith.funnel.ledger import funnel_rows, release_ids, totals, write_candidates, write_funnel


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    parser.add_argument(
        "--decisions", type=Path, nargs="+", required=True, help="files of the filters, in the order they ran"
    )
    parser.add_argument("--funnel", type=Path, required=True, help="ledger: filter, kept, dropped, reason")
    parser.add_argument("--candidates", type=Path, required=True, help="parquet file of the surviving rows")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    filters = [read_decisions(path) for path in args.decisions]
    rows = funnel_rows(release_ids(args.shards), filters)
    write_candidates(args.candidates, args.shards, filters[-1].kept)
    write_funnel(args.funnel, rows)
    for total in totals(rows):
        print(f"{total.filter}: {total.kept} kept, {total.dropped} dropped")


if __name__ == "__main__":
    run_script(main)
