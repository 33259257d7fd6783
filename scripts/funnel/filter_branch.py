"""Filter: drop rows whose branch their image lacks."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_json
from lightning_smith.funnel.filters import branch
from lightning_smith.funnel.filters.decisions import decide, decisions_on, read_decisions
from lightning_smith.funnel.filters.run import add_common_flags, write_with_counts
from lightning_smith.repositories.branches import read_branches


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument(
        "--branches",
        type=Path,
        nargs="+",
        required=True,
        help="files of scripts/release/list_branches.py, one an image",
    )
    parser.add_argument(
        "--readings",
        type=Path,
        help="JSON: rows dropped among those left for this filter, and among all rows",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    reasons = partial(branch.reasons, branches=read_branches(args.branches))
    everywhere = decide(branch.NAME, args.shards, branch.COLUMNS, reasons, None)
    left = decisions_on(everywhere, read_decisions(args.previous)) if args.previous else everywhere
    write_with_counts(left, args.out)
    if args.readings:
        # The published count does not say which of the two it is.
        write_json(args.readings, {"left_rows": left.dropped, "all_rows": everywhere.dropped})


if __name__ == "__main__":
    run_script(main)
