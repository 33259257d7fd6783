"""What mixed runs cost and prove: gold patches of the miniature's tasks, and their altered tests.

    uv run python benchmarks/altered_tests.py [--tasks 60] [--images work/mini/images]

For each of the tasks, drawn over all packages, the gold patch is graded as in training: the tests, the altered tests
on right code (once a task), and the runs that mix altered tests with others. Images that are missing are built from
the sdists of `make mini`. The last line is one JSON object:

    tasks, solved, tampered, other     tasks, and what became of their gold patches: all must be solved
    tests, witnesses                   tests of the tasks, and those that fail on right code once they are altered
    fail_to_pass, its_witnesses        the same of the tests that show the bug
    tasks_without_witness              tasks of which no FAIL_TO_PASS test is one
    mixed_runs, confirmations          mixed runs, and more runs of right code since something spoke against a patch
    tests_s, right_s, mixed_s          median seconds of a test run, of the altered one on right code, and of all that
                                       follows
    tests_cpu_s, right_cpu_s           processor time of the tests, summed over all tasks: of the run as written, of
    mixed_cpu_s                        right code's, and of all that follows
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from lightning_smith.errors import UserError, run_script
from lightning_smith.images.build import build_image
from lightning_smith.images.local import LocalImage
from lightning_smith.images.names import image_key
from lightning_smith.images.revisions import Revisions
from lightning_smith.progress import Progress
from lightning_smith.rollout.bwrap import Bwrap
from lightning_smith.rollout.grades import TestRun
from lightning_smith.rollout.grading import GraderError, decide, run_tests
from lightning_smith.rollout.plan import ImageTests, TestPlan
from lightning_smith.rollout.scratch import Scratch
from lightning_smith.rollout.stage import REPOSITORY
from lightning_smith.rollout.statuses import FAILING, read_statuses
from lightning_smith.rollout.task import Grade, RolloutTask
from lightning_smith.rollout.workspace import BwrapWorkspace
from lightning_smith.tasks.miniature.release import image_recipe, task_source
from lightning_smith.tasks.miniature.table import MiniTask, load_sources, load_tasks

_TIMES = re.compile(rb"(\d+)m(\d+\.\d+)s")

TASKS = REPOSITORY / "assets/miniature/tasks"
SOURCES = REPOSITORY / "assets/miniature/sources.tsv"
TESTBED = REPOSITORY / "envs/testbed/.venv/bin/python"


@dataclass
class TimedRuns:
    """RunStore that keeps the runs of one grading, and the seconds that each took, in their order."""

    runs: list[TestRun] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        self.runs.append(self._timed(make))
        return self.runs[-1]

    def _timed[R](self, make: Callable[[], R]) -> R:
        started_s = time.perf_counter()
        made = make()
        self.seconds.append(time.perf_counter() - started_s)
        return made


class TimedTests(ImageTests):
    """TestPlans of the images, whose tests say at their end how much processor time they took."""

    def plan(self, task: RolloutTask, image: Revisions, grade: Grade) -> TestPlan:
        plan = super().plan(task, image, grade)
        return replace(plan, command=f"trap times EXIT; {plan.command}")


def cpu_s(run: TestRun) -> float:
    """Processor time of the tests: the sum of the four figures that `times` has printed last."""
    found = _TIMES.findall(run.log)[-4:]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in found)


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
    times: dict[str, list[float]] = defaultdict(list)
    spent_s: dict[str, float] = defaultdict(float)
    chosen = sample(args.tasks)
    progress = Progress("altered tests", len(chosen), unit="tasks")
    for task in chosen:
        image = open_image(task.package, args.images, args.sdists)
        store = TimedRuns()
        counts += grade(task, image, sandbox, store, args.timeout_s)
        for number, (run, wall_s) in enumerate(zip(store.runs, store.seconds, strict=True)):
            name = ("tests", "right")[number] if number < 2 else "mixed"
            spent_s[f"{name}_cpu_s"] += cpu_s(run)
            if number < 2:
                times[f"{name}_s"].append(wall_s)
        times["mixed_s"].append(sum(store.seconds[2:]))
        progress.step()
    progress.close()
    names = ("solved", "tampered", "other", "tests", "witnesses", "fail_to_pass", "its_witnesses")
    names += ("mixed_runs", "confirmations")
    figures = {"tasks": len(chosen)} | {name: counts[name] for name in (*names, "tasks_without_witness")}
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    print(json.dumps(figures | {name: round(s, 2) for name, s in {**medians, **spent_s}.items()}))


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
        run = run_tests(
            task, image, gold(mini, image, sandbox), store, sandbox, timeout_s=timeout_s, plans=TimedTests()
        )
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
        altered = [run.altered for run in store.runs[2:]]
        counts["confirmations"] = sum(one == other for one, other in pairwise(altered))
        counts["mixed_runs"] = len(altered) - counts["confirmations"]
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
