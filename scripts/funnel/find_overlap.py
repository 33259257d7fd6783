"""Find which repositories and files of the release the evaluation set has as well."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_json
from lightning_smith.funnel.overlap import (
    HEADER,
    evaluation_edits,
    find_overlaps,
    overlapping_tasks,
    training_edits,
    write_overlaps,
)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    parser.add_argument("--evaluation", type=Path, required=True, help="parquet file of the evaluation set")
    parser.add_argument("--table", type=Path, required=True, help="table: " + ", ".join(HEADER))
    parser.add_argument("--tasks", type=Path, required=True, help="JSON: instance id -> file or repository")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    overlaps = find_overlaps(training_edits(args.shards), evaluation_edits(args.evaluation))
    tasks = overlapping_tasks(overlaps)
    write_json(args.tasks, dict(sorted(tasks.items())))
    write_overlaps(args.table, overlaps)
    files = sum(kind == "file" for kind in tasks.values())
    print(
        f"{len(overlaps)} repositories are in both sets; {len(tasks)} tasks are of them, {files} on shared files"
    )


if __name__ == "__main__":
    run_script(main)
