"""What the second run of a grading costs and proves: gold patches of the miniature's tasks, and their altered tests.

    uv run python benchmarks/altered_tests.py [--tasks 60] [--images work/mini/images]

For each of the tasks, drawn over all packages, the gold patch is graded as in training: the tests, the altered tests
on right code (once a task), and the altered tests on the patch. Images that are missing are built from the sdists of
`make mini`. The last line is one JSON object:

    tasks, solved, tampered, other     tasks, and what became of their gold patches: all must be solved
    tests, witnesses                   tests of the tasks, and those that fail on right code once they are altered
    fail_to_pass, its_witnesses        the same of the tests that show the bug
    tasks_without_witness              tasks of which no FAIL_TO_PASS test is one
    tests_s, altered_s                 median seconds of a test run, and of the altered one
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lightning_smith.errors import UserError, run_script
from lightning_smith.images.build import build_image
from lightning_smith.images.local import LocalImage
from lightning_smith.images.names import image_key
from lightning_smith.progress import Progress
from lightning_smith.rollout.bwrap import Bwrap
from lightning_smith.rollout.grades import TestRun
from lightning_smith.rollout.grading import GraderError, decide, run_tests
from lightning_smith.rollout.scratch import Scratch
from lightning_smith.rollout.stage import REPOSITORY
from lightning_smith.rollout.statuses import FAILING, read_statuses
from lightning_smith.rollout.task import RolloutTask
from lightning_smith.rollout.workspace import BwrapWorkspace
from lightning_smith.tasks.miniature.release import image_recipe, task_source
from lightning_smith.tasks.miniature.table import MiniTask, load_sources, load_tasks

TASKS = REPOSITORY / "assets/miniature/tasks"
SOURCES = REPOSITORY / "assets/miniature/sources.tsv"
TESTBED = REPOSITORY / "envs/testbed/.venv/bin/python"


@dataclass
class TimedRuns:
    """RunStore that keeps the runs of one grading with their times, in their order."""

    runs: list[TestRun] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        started_s = time.perf_counter()
        self.runs.append(make())
        self.seconds.append(time.perf_counter() - started_s)
        return self.runs[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=60, help="how many (default: 60)")
    parser.add_argument("--images", type=Path, default=REPOSITORY / "work/mini/images")
    parser.add_argument("--sdists", type=Path, default=REPOSITORY / "work/mini/sdists")
    parser.add_argument("--timeout-s", type=float, default=60)
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.platform()}")
    sandbox = Bwrap.find(TESTBED)
    counts: Counter[str] = Counter()
    tests_s: list[float] = []
    altered_s: list[float] = []
    chosen = sample(args.tasks)
    progress = Progress("altered tests", len(chosen), unit="tasks")
    for task in chosen:
        image = open_image(task.package, args.images, args.sdists)
        store = TimedRuns()
        counts += grade(task, image, sandbox, store, args.timeout_s)
        tests_s.append(store.seconds[0])
        altered_s += store.seconds[2:]
        progress.step()
    progress.close()
    names = ("solved", "tampered", "other", "tests", "witnesses", "fail_to_pass", "its_witnesses")
    figures = {"tasks": len(chosen)} | {name: counts[name] for name in (*names, "tasks_without_witness")}
    medians = {"tests_s": tests_s, "altered_s": altered_s}
    print(json.dumps(figures | {name: round(statistics.median(s), 2) for name, s in medians.items() if s}))


def sample(number: int) -> list[MiniTask]:
    """Tasks of all packages, in turn."""
    packages: dict[str, list[MiniTask]] = {}
    for task in [*load_tasks(TASKS, "train"), *load_tasks(TASKS, "heldout")]:
        if task.branch:
            packages.setdefault(task.package, []).append(task)
    chance = random.Random(0)
    for tasks in packages.values():
        chance.shuffle(tasks)
    turns = max(map(len, packages.values()))
    in_turn = [tasks[turn] for turn in range(turns) for tasks in packages.values() if turn < len(tasks)]
    return in_turn[:number]


def open_image(package: str, images: Path, sdists: Path) -> LocalImage:
    source = task_source(load_sources(SOURCES), package)
    folder = images / image_key(source.image_name)
    if not (folder / "image.json").exists():
        found = sorted(sdists.glob(f"{package}-*"))
        if not found:
            raise UserError(f"{sdists} has no sdist of {package}: run `make mini` first, or give --sdists")
        build_image(folder, image_recipe(source, found[0], TASKS), TESTBED)
    return LocalImage.open(folder)


def grade(
    mini: MiniTask, image: LocalImage, sandbox: Bwrap, store: TimedRuns, timeout_s: float
) -> Counter[str]:
    task = RolloutTask(
        mini.instance_id, image.image_name, "", tuple(mini.fail_to_pass), tuple(mini.pass_to_pass)
    )
    try:
        run = run_tests(task, image, gold(mini, image, sandbox), store, sandbox, timeout_s=timeout_s)
        outcome = decide(task, run).value
    except GraderError as error:
        outcome = str(error)
    if outcome != "solved":
        print(f"{mini.instance_id}: {outcome}")
    counts = Counter([outcome if outcome in ("solved", "tampered") else "other"])
    counts["tests"] += len(task.tests)
    counts["fail_to_pass"] += len(task.fail_to_pass)
    if len(store.runs) > 1:
        statuses = read_statuses(store.runs[1].log, task.tests)
        failing = {test for test, status in statuses.items() if status in FAILING}
        counts["witnesses"] += len(failing & set(task.tests))
        counts["its_witnesses"] += len(failing & set(task.fail_to_pass))
        counts["tasks_without_witness"] += not failing & set(task.fail_to_pass)
    return counts


def gold(mini: MiniTask, image: LocalImage, sandbox: Bwrap) -> bytes:
    """The patch that puts the right line back."""
    with (
        Scratch() as scratch,
        BwrapWorkspace(sandbox, image, mini.instance_id, scratch / "gold") as workspace,
    ):
        file = workspace.tree / mini.path
        file.write_bytes(image.file_at("main", mini.path))
        return workspace.diff()


if __name__ == "__main__":
    run_script(main)
