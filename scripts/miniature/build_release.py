"""Write the miniature's training tasks as a release in SWE-smith's columns and shards."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.miniature.tasks.release import build_release


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="folder of train.jsonl and tests.json")
    parser.add_argument("--sources", type=Path, required=True, help="sources.tsv: the pinned sdists")
    parser.add_argument("--sdists", type=Path, required=True, help="folder of the downloaded sdists")
    parser.add_argument("--shards", type=whole(1), default=3, help="number of parquet files (default 3)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the release: SHA256SUMS and data/")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    rows = build_release(args.sources, args.tasks, args.sdists, args.out, args.shards)
    print(f"{rows} rows in {args.shards} shards below {args.out}")


if __name__ == "__main__":
    run_script(main)
