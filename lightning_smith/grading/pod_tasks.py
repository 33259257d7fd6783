"""Certifies the tasks of a pod's image in the pod: the gold patch must pass, and no patch at all must not.

Run in the container `harness`, whose /opt/agent has all that it needs:

    /opt/agent/bin/python3 -m lightning_smith.grading.pod_tasks --pod /run/pod --tasks train.jsonl --log log.jsonl

Run it again after an interruption: it goes on from its log, and no run with a verdict is made twice.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from lightning_smith.contracts.task import Grade
from lightning_smith.contracts.validation import ValidationLog, verdicts
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import read_json
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.validate import TaskRooms, buggy_rows, draw_ids, validate
from lightning_smith.repositories.names import image_key
from lightning_smith.sandbox.container import ContainerRoom
from lightning_smith.sandbox.pod import NAME_REMEDY, PodSandbox


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pod", type=Path, required=True, help="folder that the pod's containers share")
    add("--tasks", type=Path, nargs="+", required=True, help="SWE-smith rows, JSON lines; of any images")
    add("--count", type=int, default=10**9, help="so many of the image's tasks (default: all)")
    add("--timeout", type=float, default=600, help="processor seconds of one test run (default %(default)s)")
    add("--runs", type=int, default=1, help="test runs of each of a task's two patches (default %(default)s)")
    add("--grade", choices=[*Grade], default="all", help="which tests decide (default %(default)s)")
    add("--log", type=Path, required=True, help="one record a test run, read on a rerun")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    room = ContainerRoom(PodSandbox.find(args.pod))
    name = read_json(args.pod / "image" / "image.json")["image_name"]
    rows = {buggy.task.instance_id: buggy for buggy in buggy_rows(args.tasks, image_key(name))}
    wanted = [rows[instance_id] for instance_id in sorted(draw_ids(rows, args.count))]
    if not wanted:
        raise UserError(
            f"no task with FAIL_TO_PASS tests is of this pod's image, {name}: give other --tasks, or {NAME_REMEDY}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        # The tests are told by the image: SWE-smith's profiles need a package that no image has.
        rooms = TaskRooms(
            room,
            open_plans("image"),
            timeout_s=args.timeout,
            scratch=Path(scratch),
            grade=Grade(args.grade),
        )
        records = validate(
            lambda: wanted,
            rooms,
            ValidationLog(args.log),
            runs=args.runs,
            workers=1,  # a pod has one workbench and one grader
            total=len(wanted),
            max_invalid_fraction=1.0,
        )
    found = verdicts(records, args.runs)
    wrong = sorted((name, reason) for name, reason in found.items() if reason)
    counts = Counter(f"{record.patch} {record.outcome}" for record in records)
    print(f"{len(wanted)} tasks: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if wrong:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in wrong)
        raise UserError(
            f"{len(wrong)} of {len(wanted)} tasks are not what they say (see {args.log}):{reasons}"
        )


if __name__ == "__main__":
    run_script(main)
