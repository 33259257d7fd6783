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
    add("--release", type=Path, required=True, help="JSON of scripts/release/check_release.py")
    add("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    add("--funnel", type=Path, required=True, help="ledger of scripts/funnel/collect_candidates.py")
    add("--readings", type=Path, required=True, help="JSON of scripts/funnel/filter_branch.py")
    add("--candidates", type=Path, required=True, help="rows that survived")
    add("--overlap", type=Path, required=True, help="table of scripts/funnel/find_overlap.py")
    add("--out", type=Path, required=True, help="Markdown page")
    return parser.parse_args(argv)


def data_file(path: Path) -> DataFile:
    """Size and hash of a file."""
    return DataFile(path.name, path.stat().st_size, sha256_file(path))


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    page = describe_data(
        source=args.source,
        release=read_json(args.release),
        shards=[data_file(path) for path in sorted(args.shards)],
        funnel=read_funnel(args.funnel),
        readings=read_json(args.readings),
        candidates=data_file(args.candidates),
        overlap=read_overlaps(args.overlap),
    )
    write_atomic(args.out, page)


if __name__ == "__main__":
    run_script(main)
