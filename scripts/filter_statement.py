"""First filter: drop rows whose problem statement says nothing."""

from __future__ import annotations

import argparse

from lightning_smith.errors import run_script
from lightning_smith.tasks.filters import statement
from lightning_smith.tasks.filters.run import add_common_flags, run_filter


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    run_filter(statement.NAME, args.shards, statement.COLUMNS, statement.reasons, args.previous, args.out)


if __name__ == "__main__":
    run_script(main)
