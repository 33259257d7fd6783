"""Grade a checkpoint's predictions with swebench, or gold and empty patches as a control of the grading.

Run it again after an interruption: what was graded stays graded. Needs the environment envs/eval.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.models import Evaluation
from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import GradeStage
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import sha256_file
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.provenance import code_version
from lightning_smith.evaluation.executor import SandboxExecutor
from lightning_smith.evaluation.grade import GradeSettings, control, grade, planned_tasks, read_run
from lightning_smith.grading.store import GradeStore
from lightning_smith.release.evaluation_set import choose_tasks, read_tasks
from lightning_smith.sandbox.rooms import open_room

EXECUTORS = {"bwrap": "bubblewrap", "docker": "Docker"}
"""What a table calls where the tests ran."""


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, GradeStage)
    add = parser.add_argument
    add("--tasks", type=Path, required=True, help="held-out tasks, parquet in swebench's version 5 format")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--predictions", type=Path, help="folder with run.json and sample_<k>/preds.jsonl")
    what.add_argument("--control", choices=("gold", "empty"), help="grade these patches instead")
    add("--out", type=Path, help="control: summary to write")
    add("--store", type=Path, help="folder of test runs made earlier (default: grades/ beside the images)")
    add("--workers", type=whole(1), default=2, help="test runs at once (default %(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Grade and say what came out."""
    args = parse_args(argv)
    stage: GradeStage = read_settings(args, GradeStage)
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    tasks = read_tasks(args.tasks)
    timeout_s = float(stage.evaluation.harness_timeout_s)  # a part of the keys of stored runs
    executor = SandboxExecutor(
        open_room(stage.harness, stage.images),
        GradeStore(args.store or stage.images.parent / "grades", slots=args.workers),
        timeout_s,
        retest_fraction=stage.evaluation.retest_fraction,
        scratch=stage.work / "scratch",
    )
    settings = GradeSettings(
        work=stage.work,
        execute=executor,
        cross_check=executor.cross_check,
        scan=executor.scan,
        executor=EXECUTORS[stage.harness],
        timeout_s=timeout_s,
        workers=args.workers,
        max_invalid_fraction=stage.evaluation.max_invalid_fraction,
        versions=executor.versions,
    )
    if args.control:
        run_control(args, stage.evaluation, settings, tasks)
    else:
        run_grade(args, settings, tasks)


def run_control(
    args: argparse.Namespace, evaluation: Evaluation, settings: GradeSettings, tasks: list[dict]
) -> None:
    """Grade the gold or empty patches of the instances that predictions are made for."""
    if args.out is None:
        raise UserError("--control needs --out")
    chosen = choose_tasks(tasks, evaluation.instances, evaluation.seed)
    with stage_lock(settings.work, f"grade-control-{args.control}"):
        summary = control(args.control, settings, chosen, sha256_file(args.tasks), args.out)
    print(f"{summary['resolved']} of {summary['instances']} {args.control} patches resolve, in {args.out}")
    if summary["failed"]:
        print(f"against expectation: {', '.join(summary['failed'])}")


def run_grade(args: argparse.Namespace, settings: GradeSettings, tasks: list[dict]) -> None:
    """Grade the predictions of one checkpoint."""
    run = read_run(args.predictions, args.tasks)
    planned = planned_tasks(tasks, run["instance_ids"])
    with stage_lock(settings.work, f"grade-{run['recipe']}-{run['step']}"):
        summary = grade(settings, planned, run, args.predictions)
    counts = ", ".join(f"{count} {name}" for name, count in summary["counts"].items())
    print(
        f"{counts} of {summary['instances']} instances x {summary['samples']} samples, in {args.predictions}"
    )
    if summary["suspicious"]:
        print(
            f"{summary['suspicious']} of the patches use what forging results takes "
            f"(`hits` in {args.predictions / 'verdicts.jsonl'}, docs/attacks.md)"
        )
    if summary["disagreements"]:
        ids = ", ".join(f"{item['instance_id']} ({item['sample']})" for item in summary["disagreements"])
        print(f"the grader of training disagrees on {len(summary['disagreements'])}: {ids}")


if __name__ == "__main__":
    run_script(main)
