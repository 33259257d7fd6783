"""Filter: drop rows that need more tests than a limit."""

from __future__ import annotations

import argparse
from functools import partial

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.funnel.filters import test_count
from lightning_smith.funnel.filters.run import add_common_flags, run_filter


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument(
        "--limit",
        type=whole(1),
        required=True,
        help="tests: FAIL_TO_PASS and PASS_TO_PASS together, duplicates once",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    reasons = partial(test_count.reasons, limit=args.limit)
    read = test_count.NAME, args.shards, test_count.COLUMNS
    run_filter(*read, reasons, args.previous, args.out, cheap_batches=True)


if __name__ == "__main__":
    run_script(main)
