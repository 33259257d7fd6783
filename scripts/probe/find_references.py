"""Find out what the right code of each image does with the altered tests of its tasks, for gradings to come.

Run it again after an interruption: images whose tests have run are not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.grading.find_references import find_references
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.references import write_references
from lightning_smith.probe.rows import read_rows
from lightning_smith.sandbox.rooms import open_room


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--tasks",
        type=Path,
        nargs="+",
        required=True,
        help="files of tasks, parquet or JSON lines with SWE-smith's columns",
    )
    add("--images", type=Path, required=True, help="folder of the images")
    add("--workspace", default="bwrap", help="backends.workspace (default %(default)s)")
    add("--tests", default="image", help="backends.tests (default %(default)s)")
    add("--timeout", type=number(0, above=True), required=True, help="processor seconds of one test run")
    add("--workers", type=whole(1), default=2, help="images at a time (default %(default)s)")
    add(
        "--work", type=Path, required=True, help="folder for the live log, read on a rerun, and scratch files"
    )
    add("--out", type=Path, required=True, help="finished file, gzip of JSON lines, written last")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    exit_when_orphaned()
    with stage_lock(args.work, "find-references"):
        found = find_references(
            (
                RolloutTask.from_row(row, f"{path} row {count}")
                for path in args.tasks
                for count, row in enumerate(read_rows(path), start=1)
            ),
            open_room(args.workspace, args.images),
            open_plans(args.tests),
            workers=args.workers,
            timeout_s=args.timeout,
            scratch=args.work / "scratch",
            log=args.work / "references.jsonl",
        )
        write_references(args.out, found.rows)
    print(f"{len(found.rows)} images, {len(found.lost)} without a row")
    for name, reason in sorted(found.lost.items()):
        print(f"  {name}: right code is tested when a patch needs it ({reason})")


if __name__ == "__main__":
    run_script(main)
