"""Filter: drop rows of repositories, or on files, that the evaluation set is about."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import read_json
from lightning_smith.funnel.filters import overlap
from lightning_smith.funnel.filters.run import add_common_flags, run_filter


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument("--overlap", type=Path, required=True, help="tasks of scripts/funnel/find_overlap.py")
    parser.add_argument("--level", choices=sorted(overlap.LEVELS), required=True, help="what is dropped")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    reasons = partial(overlap.reasons, overlapping=read_json(args.overlap), level=args.level)
    run_filter(overlap.NAME, args.shards, overlap.COLUMNS, reasons, args.previous, args.out)


if __name__ == "__main__":
    run_script(main)
