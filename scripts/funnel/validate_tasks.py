"""Test the gold patch, and no patch at all, of a part of a release's tasks, several times over.

Run it again after an interruption: it goes on from its log, and no run with a verdict is made twice.
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from pathlib import Path

from lightning_smith.contracts.task import Grade
from lightning_smith.contracts.validation import ValidationLog, verdicts
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.work_folder import settings_folder
from lightning_smith.funnel.filters.decisions import read_decisions
from lightning_smith.grading.tester import GRADER_VERSION
from lightning_smith.grading.validate import buggy_tasks, part_of, validate, validation_rooms


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    add("--previous", type=Path, required=True, help="decisions of the filter before: what it kept is tested")
    add("--part", type=whole(0), default=0, help="which part of these tasks, from 0 (default %(default)s)")
    add("--parts", type=whole(1), default=1, help="number of parts (default %(default)s)")
    add("--runs", type=whole(1), required=True, help="test runs of each of a task's two patches")
    add(
        "--grade",
        choices=[*Grade],
        default="all",
        help="which of a task's tests decide (default %(default)s)",
    )
    add("--timeout", type=number(0, above=True), required=True, help="processor seconds of one test run")
    add("--workspace", required=True, help="backends.workspace of the configuration")
    add("--images", type=Path, required=True, help="folder of the images")
    add("--tests", required=True, help="backends.tests of the configuration")
    add("--scratch", type=Path, required=True, help="where trees go if /dev/shm is full")
    add("--workers", type=whole(1), default=2, help="test runs at a time (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a test run without a verdict (default %(default)s)")
    add("--max-invalid-fraction", type=number(0, 1), default=0.0, help="may lack a verdict, 0..1 (default 0)")
    add(
        "--log",
        type=Path,
        required=True,
        help="live log: one record a test run, read on a rerun; kept in a folder beside it for each combination of the "
        "settings that decide",
    )
    add("--out", type=Path, required=True, help="finished log, written last")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.part >= args.parts:
        raise UserError(f"--part {args.part} is not below --parts {args.parts}: parts are numbered from 0")
    exit_when_orphaned()
    with stage_lock(args.log.parent, f"validate-{args.log.stem}"):
        wanted = part_of(read_decisions(args.previous).kept, args.part, args.parts)
        rooms = validation_rooms(
            args.workspace,
            args.images,
            tests=args.tests,
            grade=args.grade,
            timeout_s=args.timeout,
            scratch=args.scratch,
        )
        deciding = {"workspace": args.workspace, "grader": GRADER_VERSION, **rooms.depends_on}
        folder = settings_folder(args.log.parent, deciding, stage="validate")
        records = validate(
            partial(buggy_tasks, args.shards, wanted),
            rooms,
            ValidationLog(folder / args.log.name),
            runs=args.runs,
            workers=args.workers,
            total=len(wanted),
            retries=args.retries,
            max_invalid_fraction=args.max_invalid_fraction,
        )
        write_jsonl(args.out, (record.to_dict() for record in records))
    counts = Counter(reason or "valid" for reason in verdicts(records, args.runs).values())
    print(f"{len(wanted)} tasks: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    run_script(main)
