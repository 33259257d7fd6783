"""List the images that data sets name: key and full name a line."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_atomic
from lightning_smith.release.image_lists import names_text, needed


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=Path, nargs="+", required=True, help="tasks, .jsonl or .parquet")
    parser.add_argument("--out", type=Path, required=True, help="table")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    write_atomic(args.out, names_text(needed(args.datasets)))


if __name__ == "__main__":
    run_script(main)
