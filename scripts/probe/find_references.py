"""Find out what the right code of each image does with the altered tests of its tasks, for gradings to come.

Run it again after an interruption: images whose tests have run are not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import ReferencesStage
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.grading.find_references import find_references
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.references import write_references
from lightning_smith.probe.rows import read_rows
from lightning_smith.sandbox.rooms import open_room


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, ReferencesStage)
    add = parser.add_argument
    add(
        "--tasks",
        type=Path,
        nargs="+",
        required=True,
        help="files of tasks, parquet or JSON lines with SWE-smith's columns",
    )
    add("--workers", type=whole(1), default=2, help="images at a time (default %(default)s)")
    add("--out", type=Path, required=True, help="finished file, gzip of JSON lines, written last")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    stage: ReferencesStage = read_settings(args, ReferencesStage)
    exit_when_orphaned()
    with stage_lock(stage.work, "find-references"):
        found = find_references(
            (
                RolloutTask.from_row(row, f"{path} row {count}")
                for path in args.tasks
                for count, row in enumerate(read_rows(path), start=1)
            ),
            open_room(stage.workspace, stage.images),
            open_plans(stage.tests),
            workers=args.workers,
            timeout_s=float(stage.timeout_s),
            scratch=stage.work / "scratch",
            log=stage.work / "references.jsonl",
        )
        write_references(args.out, found.rows)
    print(f"{len(found.rows)} images, {len(found.lost)} without a row")
    for name, reason in sorted(found.lost.items()):
        print(f"  {name}: right code is tested when a patch needs it ({reason})")


if __name__ == "__main__":
    run_script(main)
