"""Write the miniature's held-out tasks in SWE-bench's format."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.miniature.tasks.release import build_heldout


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="folder of heldout.jsonl and tests.json")
    parser.add_argument("--sources", type=Path, required=True, help="sources.tsv: the pinned sdists")
    parser.add_argument("--sdists", type=Path, required=True, help="folder of the downloaded sdists")
    parser.add_argument("--out", type=Path, required=True, help="parquet file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    rows = build_heldout(args.sources, args.tasks, args.sdists, args.out)
    print(f"{rows} rows in {args.out}")


if __name__ == "__main__":
    run_script(main)
