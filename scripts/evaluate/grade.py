"""Grade a checkpoint's predictions with swebench, or gold and empty patches as a control of the grading.

Run it again after an interruption: what was graded stays graded. Needs the environment envs/eval.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import number, whole
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", type=Path, required=True, help="held-out tasks, parquet in swebench's version 5 format")
    add("--images", type=Path, required=True, help="folder of the images")
    add("--harness", default="bwrap", choices=EXECUTORS, help="backends.harness (default %(default)s)")
    add("--testbed-python", type=Path, required=True, help="bwrap: interpreter that the tests run with")
    add("--work", type=Path, required=True, help="folder for logs, reports of instances and scratch trees")
    add("--store", type=Path, help="folder of test runs made earlier (default: grades/ beside --images)")
    add(
        "--timeout",
        type=number(0, above=True),
        default=1800.0,
        help="processor seconds for an instance's tests (default %(default)s)",
    )
    add(
        "--retest-fraction",
        type=number(0, 1),
        default=1.0,
        help="resolved patches that the grader of training tests again, 0..1 (default %(default)s)",
    )
    add("--workers", type=whole(1), default=2, help="test runs at once (default %(default)s)")
    add(
        "--max-invalid-fraction",
        type=number(0, 1),
        default=0.02,
        help="patches that may stay ungraded for reasons of the machine, 0..1 (default %(default)s)",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--predictions", type=Path, help="folder with run.json and sample_<k>/preds.jsonl")
    what.add_argument("--control", choices=("gold", "empty"), help="grade these patches instead")
    add(
        "--instances",
        type=whole(0),
        default=0,
        help="control: how many tasks are drawn; 0 (the default) for all",
    )
    add("--seed", type=whole(0), help="control: seed of the draw, the same as in predict")
    add("--out", type=Path, help="control: summary to write")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Grade and say what came out."""
    args = parse_args(argv)
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    tasks = read_tasks(args.tasks)
    executor = SandboxExecutor(
        open_room(args.harness, args.images, args.testbed_python),
        GradeStore(args.store or args.images.parent / "grades", slots=args.workers),
        args.timeout,
        retest_fraction=args.retest_fraction,
        scratch=args.work / "scratch",
    )
    settings = GradeSettings(
        work=args.work,
        execute=executor,
        cross_check=executor.cross_check,
        scan=executor.scan,
        executor=EXECUTORS[args.harness],
        timeout_s=args.timeout,
        workers=args.workers,
        max_invalid_fraction=args.max_invalid_fraction,
        versions=executor.versions,
    )
    if args.control:
        run_control(args, settings, tasks)
    else:
        run_grade(args, settings, tasks)


def run_control(args: argparse.Namespace, settings: GradeSettings, tasks: list[dict]) -> None:
    """Grade the gold or empty patches of the instances that predictions are made for."""
    if args.out is None or args.seed is None:
        raise UserError("--control needs --out and --seed")
    chosen = choose_tasks(tasks, args.instances or None, args.seed)
    with stage_lock(args.work, f"grade-control-{args.control}"):
        summary = control(args.control, settings, chosen, sha256_file(args.tasks), args.out)
    print(f"{summary['resolved']} of {summary['instances']} {args.control} patches resolve, in {args.out}")
    if summary["failed"]:
        print(f"against expectation: {', '.join(summary['failed'])}")


def run_grade(args: argparse.Namespace, settings: GradeSettings, tasks: list[dict]) -> None:
    """Grade the predictions of one checkpoint."""
    run = read_run(args.predictions, args.tasks)
    planned = planned_tasks(tasks, run["instance_ids"])
    with stage_lock(args.work, f"grade-{run['recipe']}-{run['step']}"):
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
