"""Filter: drop rows whose gold patch does not pass or whose bug does not fail, by the logs of the validation."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from lightning_smith.contracts.validation import read_records, verdicts
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.funnel.filters import validated
from lightning_smith.funnel.filters.run import add_common_flags, run_filter


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument(
        "--logs",
        type=Path,
        nargs="+",
        required=True,
        help="finished logs of scripts/funnel/validate_tasks.py",
    )
    parser.add_argument(
        "--runs", type=whole(1), required=True, help="test runs of each patch that must be there"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    reasons = partial(validated.reasons, verdicts=verdicts(read_records(args.logs), args.runs))
    run_filter(validated.NAME, args.shards, validated.COLUMNS, reasons, args.previous, args.out)


if __name__ == "__main__":
    run_script(main)
