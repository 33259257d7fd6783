"""Add what was recorded of a finished download to the committed table of shards."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.release.pins import add_records


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="folder of the data stages (default %(default)s)")
    add("--table", type=Path, default=Path("assets/release/shards.tsv"), help="default %(default)s")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    records = sorted([*args.data.glob("raw/*.parquet.json"), *args.data.glob("*.parquet.json")])
    if not records:
        raise UserError(
            f"{args.data} has no record of a download: run `uv run snakemake {args.data}/release.json` first"
        )
    print(f"{args.table}: {add_records(args.table, records)} rows added from {len(records)} records")


if __name__ == "__main__":
    run_script(main)
