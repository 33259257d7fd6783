"""Draw the report's figures (funnel.svg, reward.svg, evaluation.svg) from small files."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.funnel.ledger import read_funnel, totals
from lightning_smith.report.figures import read_results, read_rewards, write_figures


def main(argv: list[str] | None = None) -> None:
    """Draw every figure whose data are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--funnel", help="funnel.tsv of the filters")
    parser.add_argument(
        "--metrics",
        nargs=2,
        action="append",
        default=[],
        metavar=("RECIPE", "FILE"),
        help="manifest of a training run's last checkpoint; may be given many times",
    )
    parser.add_argument("--results", help="CSV of the results table")
    parser.add_argument("--out", required=True, help="folder for the SVG files")
    args = parser.parse_args(argv)
    write_figures(
        args.out,
        funnel=totals(read_funnel(Path(args.funnel))) if args.funnel else None,
        rewards={recipe: read_rewards(path) for recipe, path in args.metrics} or None,
        results=read_results(args.results) if args.results else None,
    )


if __name__ == "__main__":
    run_script(main)
