"""Write the page that says what the data funnel read, dropped and left."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import read_json, sha256_file, write_atomic
from lightning_smith.funnel.describe import DataFile, describe_data
from lightning_smith.funnel.ledger import read_funnel
from lightning_smith.funnel.overlap import read_overlaps


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--source", required=True, help="name and revision of the release")
    add("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    add("--data", type=Path, required=True, help="folder with what the funnel has written")
    add("--out", type=Path, required=True, help="Markdown page")
    return parser.parse_args(argv)


def data_file(path: Path) -> DataFile:
    """Return the size and hash of a file."""
    return DataFile(path.name, path.stat().st_size, sha256_file(path))


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    page = describe_data(
        source=args.source,
        release=read_json(args.data / "release.json"),
        shards=[data_file(path) for path in sorted(args.shards)],
        funnel=read_funnel(args.data / "funnel.tsv"),
        readings=read_json(args.data / "branch_readings.json"),
        candidates=data_file(args.data / "candidates.parquet"),
        overlap=read_overlaps(args.data / "overlap.tsv"),
    )
    write_atomic(args.out, page)


if __name__ == "__main__":
    run_script(main)
