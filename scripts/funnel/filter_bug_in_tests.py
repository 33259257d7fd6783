"""Filter: drop rows whose bug lies in a file that grades them, or whose patch cannot be read."""

from __future__ import annotations

import argparse
from functools import partial

from lightning_smith.contracts.task import Grade
from lightning_smith.core.errors import run_script
from lightning_smith.funnel.filters import bug_in_tests
from lightning_smith.funnel.filters.run import add_common_flags, run_filter


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument(
        "--grade", type=Grade, choices=list(Grade), required=True, help="which tests decide, as agent.grade"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    columns, reasons = bug_in_tests.columns(args.grade), partial(bug_in_tests.reasons, grade=args.grade)
    run_filter(bug_in_tests.NAME, args.shards, columns, reasons, args.previous, args.out)


if __name__ == "__main__":
    run_script(main)
