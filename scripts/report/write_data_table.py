"""Write the report's page on the training data: the funnel, and what the evaluation set shares with the release."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_atomic
from lightning_smith.funnel.ledger import read_funnel
from lightning_smith.funnel.overlap import read_overlaps
from lightning_smith.report.data_table import render_data_table


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--funnel", type=Path, required=True, help="ledger of scripts/funnel/collect_candidates.py")
    add("--overlap", type=Path, required=True, help="table of scripts/funnel/find_overlap.py")
    add("--title", default="Training data", help="heading (default %(default)s)")
    add("--out", type=Path, required=True, help="Markdown page")
    args = parser.parse_args(argv)
    page = render_data_table(args.title, read_funnel(args.funnel), read_overlaps(args.overlap))
    write_atomic(args.out, page)


if __name__ == "__main__":
    run_script(main)
