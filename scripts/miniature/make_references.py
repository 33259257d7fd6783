"""Make assets/miniature/tasks/references.jsonl.gz: what the miniature's packages do with their altered tests.

Images that are missing are built from the sdists of `make mini`. Make it again after a change of the tasks, or of the
alterations (`ALTERATIONS_VERSION`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.paths import REPOSITORY, TESTBED_PYTHON
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.grading.find_references import find_references
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.references import write_references
from lightning_smith.miniature.repositories import build_image
from lightning_smith.miniature.tasks.release import image_recipe, task_source
from lightning_smith.miniature.tasks.table import load_sources, load_tasks
from lightning_smith.repositories.names import image_key
from lightning_smith.sandbox.rooms import open_room


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--assets", type=Path, default=REPOSITORY / "assets/miniature")
    add("--sdists", type=Path, default=REPOSITORY / "work/mini/sdists")
    add("--images", type=Path, default=REPOSITORY / "work/mini/images")
    add(
        "--timeout",
        type=number(0, above=True),
        default=60,
        help="processor seconds of one test run (default 60)",
    )
    add("--workers", type=whole(1), default=2, help="images at a time (default %(default)s)")
    add("--work", type=Path, default=REPOSITORY / "work/references", help="folder for the live log")
    add("--out", type=Path, help="default: tasks/references.jsonl.gz of --assets")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    exit_when_orphaned()
    sources = load_sources(args.assets / "sources.tsv")
    tasks: list[RolloutTask] = []
    for role in ("train", "heldout"):
        for task in load_tasks(args.assets / "tasks", role):
            source = task_source(sources, task.package)
            if task.branch:
                tests = tuple(task.fail_to_pass), tuple(task.pass_to_pass)
                tasks.append(RolloutTask(task.instance_id, source.image_name, "", *tests))
            folder = args.images / image_key(source.image_name)
            if not (folder / "image.json").exists():
                recipe = image_recipe(source, args.sdists / source.filename, args.assets / "tasks")
                build_image(folder, recipe, TESTBED_PYTHON)
    with stage_lock(args.work, "make-references"):
        found = find_references(
            tasks,
            open_room("bwrap", args.images),
            open_plans("image"),
            workers=args.workers,
            timeout_s=args.timeout,
            scratch=args.work / "scratch",
            log=args.work / "references.jsonl",
        )
        write_references(args.out or args.assets / "tasks/references.jsonl.gz", found.rows)
    for name, reason in sorted(found.lost.items()):
        print(f"{name} has no row: {reason}")


if __name__ == "__main__":
    run_script(main)
