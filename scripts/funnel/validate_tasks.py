"""Test the gold patch, and no patch at all, of a part of a release's tasks, several times over.

Run it again after an interruption: it goes on from its log, and no run with a verdict is made twice.
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import ValidateStage
from lightning_smith.contracts.validation import ValidationLog, verdicts
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.work_folder import settings_folder
from lightning_smith.funnel.filters.decisions import read_decisions
from lightning_smith.grading.tester import GRADER_VERSION
from lightning_smith.grading.validate import buggy_tasks, part_of, validate, validation_rooms


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, ValidateStage)
    add = parser.add_argument
    add("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    add("--previous", type=Path, required=True, help="decisions of the filter before: what it kept is tested")
    add("--part", type=whole(0), default=0, help="which part of these tasks, from 0 (default %(default)s)")
    add("--workers", type=whole(1), default=2, help="test runs at a time (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a test run without a verdict (default %(default)s)")
    add("--out", type=Path, required=True, help="finished log, written last")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    stage: ValidateStage = read_settings(args, ValidateStage)
    parts, runs = stage.validation.parts, stage.validation.runs
    if args.part >= parts:
        raise UserError(
            f"--part {args.part} is not below validation.parts={parts}: parts are numbered from 0"
        )
    exit_when_orphaned()
    with stage_lock(stage.work, f"validate-{args.part}"):
        wanted = part_of(read_decisions(args.previous).kept, args.part, parts)
        rooms = validation_rooms(
            stage.workspace,
            stage.images,
            tests=stage.tests,
            grade=stage.grade,
            timeout_s=float(stage.grading_timeout_s),
            scratch=stage.work / "scratch",
        )
        deciding = {"workspace": stage.workspace, "grader": GRADER_VERSION, **rooms.depends_on}
        folder = settings_folder(stage.work, deciding, stage="validate")
        records = validate(
            partial(buggy_tasks, args.shards, wanted),
            rooms,
            ValidationLog(folder / f"{args.part}.jsonl"),
            runs=runs,
            workers=args.workers,
            total=len(wanted),
            retries=args.retries,
            max_invalid_fraction=stage.validation.max_invalid_fraction,
        )
        write_jsonl(args.out, (record.to_dict() for record in records))
    counts = Counter(reason or "valid" for reason in verdicts(records, runs).values())
    print(f"{len(wanted)} tasks: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    run_script(main)
