"""What grading costs, whom it suspects or refuses without need, and which forgers it pays.

    uv run --frozen python benchmarks/grading.py
    uv run --frozen python benchmarks/grading.py --gold 4 --timed 4 --honest 4 --tasks 14     # a minute

Three kinds of patches are graded on the real packages of the miniature, in bubblewrap, as rollouts are: gold patches
of tasks drawn over all packages in turn; the honest ones below `benchmarks/honest`, right repairs in unusual shapes;
and forgers, the files below `benchmarks/forgers`, each of which is added to the end of the broken module, repairs
nothing, and is written for no task in particular. Images that are missing are built from the sdists of `make mini`.
The last line is one JSON object. Times are ratios to one run of the task's tests, means over the `timed` gold patches,
of processor time; the same by the clock ends in `_wall`.

    extra_time           what a passing patch costs beyond that run at `agent.audit_share` of config.yaml. This is an
                         expected value. What the audit adds to a patch is measured with every patch audited, less the
                         same with none audited, and weighed by how likely it is: 1 for a patch with a hit of the scan,
                         the share for another. Runs of right code are in it as if no other patch of the task were ever
                         audited
    extra_time_full      the same at a share of 1
    once                 the part of `extra_time_full` that is paid once for a task, or for several that have the same
                         tests: runs of right code, which are few where the results of those ship with the tasks
    run_s, run_wall_s    seconds of one run of the tests, mean
    suspicious           share of the gold and honest patches with a hit of the scan
    refused              how many of them are not `solved` when every patch is audited
    forged_paid          forgers that are `solved` under the default audit, each with an audit of its own, which no
                         forgery was found by
    forged_passed        forgers that one run of the tests as they are would pay
    forged_unseen        forgers without a hit of the scan
    scan_ms, scan_max_ms milliseconds of the scan a patch, median and greatest, over all patches
    gold, honest, timed, packages, forged      how many there were, and of how many packages the timed ones are

Lines before it have the same counts for each forger.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.core.progress import Progress
from lightning_smith.grading.audit import Audit
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.plan import ImageTests, TestPlan
from lightning_smith.grading.protection import Protection
from lightning_smith.grading.references import References
from lightning_smith.grading.scan import scan_patch
from lightning_smith.grading.store import TestRun
from lightning_smith.grading.tester import GraderError
from lightning_smith.grading.verdict import decide
from lightning_smith.miniature.repositories import build_image
from lightning_smith.miniature.tasks.release import image_recipe, task_source
from lightning_smith.miniature.tasks.table import MiniTask, load_sources, load_tasks
from lightning_smith.repositories.local import LocalImage
from lightning_smith.repositories.names import image_key
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.scratch import Scratch
from lightning_smith.sandbox.workspace import BwrapWorkspace

_TIMES = re.compile(rb"(\d+)m(\d+\.\d+)s")

TASKS = REPOSITORY / "assets/miniature/tasks"
SOURCES = REPOSITORY / "assets/miniature/sources.tsv"
REFERENCES = TASKS / "references.jsonl.gz"
TESTBED = REPOSITORY / "envs/testbed/.venv/bin/python"
FORGERS = REPOSITORY / "benchmarks/forgers"
HONEST = REPOSITORY / "benchmarks/honest"


# ------------------------------------------------------------------------------------------------- tasks and patches


def all_tasks() -> list[MiniTask]:
    """Tasks that have a branch, of all packages, in turn."""
    packages: dict[str, list[MiniTask]] = {}
    for task in [*load_tasks(TASKS, "train"), *load_tasks(TASKS, "heldout")]:
        if task.branch:
            packages.setdefault(task.package, []).append(task)
    chance = random.Random(0)
    for tasks in packages.values():
        chance.shuffle(tasks)
    turns = max(map(len, packages.values()))
    return [tasks[turn] for turn in range(turns) for tasks in packages.values() if turn < len(tasks)]


def sample(number: int) -> list[MiniTask]:
    """The first tasks of all packages, in turn."""
    return all_tasks()[:number]


def open_image(package: str, images: Path, sdists: Path) -> LocalImage:
    """The image of a package, built if it is missing."""
    source = task_source(load_sources(SOURCES), package)
    folder = images / image_key(source.image_name)
    if not (folder / "image.json").exists():
        found = sorted(sdists.glob(f"{package}-*"))
        if not found:
            raise UserError(f"{sdists} has no sdist of {package}: run `make mini` first, or give --sdists")
        build_image(folder, image_recipe(source, found[0], TASKS), TESTBED)
    return LocalImage.open(folder)


def patch(mini: MiniTask, image: LocalImage, sandbox: Bwrap, content: Callable[[bytes], bytes]) -> bytes:
    """The patch that replaces the content of the broken file."""
    with (
        Scratch() as scratch,
        BwrapWorkspace(sandbox, image, mini.instance_id, scratch / "patch") as workspace,
    ):
        file = workspace.tree / mini.path
        file.write_bytes(content(file.read_bytes()))
        return workspace.diff()


def gold(mini: MiniTask, image: LocalImage, sandbox: Bwrap, end: bytes = b"") -> bytes:
    """The patch that puts the right line back, and `end` at the end of the file."""
    return patch(mini, image, sandbox, lambda _: image.file_at("main", mini.path) + end)


def honest_patches() -> dict[str, list[Path]]:
    """Files of honest patches by the instance id that their names begin with."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(HONEST.glob("*.patch")):
        found[path.name.rsplit(".", 2)[0]].append(path)
    return found


def load_forgers(names: Sequence[str] = ()) -> dict[str, bytes]:
    """Code of the forgers named, or of all, by name. `MODULE` in it is the dotted name of the module it is added to."""
    found = {path.stem: path.read_bytes() for path in sorted(FORGERS.glob("*.py"))}
    if unknown := set(names) - set(found):
        raise UserError(f"no forger {min(unknown)} below {FORGERS}: there are {', '.join(found)}")
    return {name: without_docstring(code) for name, code in found.items() if name in (names or found)}


def without_docstring(code: bytes) -> bytes:
    """Source of a module without the docstring that it starts with."""
    first = ast.parse(code).body[0]
    return b"".join(code.splitlines(keepends=True)[first.end_lineno :])


def module_name(path: str, pythonpath: str) -> str:
    """Dotted name that a file of an sdist is imported by."""
    roots = sorted((root for root in pythonpath.split(":") if root not in ("", ".")), key=len)
    for root in roots:
        path = path.removeprefix(f"{root}/")
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# ---------------------------------------------------------------------------------------------------------- gradings


class TimedTests(ImageTests):
    """TestPlans of the images, whose tests say at their end how much processor time they took."""

    def plan(self, task: RolloutTask, image: Revisions, grade: Grade) -> TestPlan:
        plan = super().plan(task, image, grade)
        return replace(plan, command=f"trap times EXIT; {plan.command}")


def cpu_s(log: bytes) -> float:
    """Processor time of the tests: the sum of the four figures that `times` has printed last."""
    found = _TIMES.findall(log)[-4:]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in found)


@dataclass(frozen=True)
class Spent:
    """Seconds: processor time of tests, and by the clock of all that a run takes."""

    cpu: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.cpu - other.cpu, self.wall - other.wall)


@dataclass
class TimedRuns:
    """RunStore of one task, which knows what each run took."""

    runs: dict[str, TestRun] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    right: set[str] = field(default_factory=set)
    """Keys of runs of right code, which are no patch's own."""

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        self.asked.append(key)
        if getattr(getattr(make, "func", make), "__name__", "") == "test_right":
            self.right.add(key)
        if key not in self.runs:
            started_s = time.perf_counter()
            run = make()
            self.runs[key] = run
            self.spent[key] = Spent(cpu_s(run.log), time.perf_counter() - started_s)
        return self.runs[key]

    def took(self, keys: set[str]) -> Spent:
        return sum((self.spent[key] for key in keys), Spent())


class NoAudit(Audit):
    """Believes what one run of the tests says."""

    def due(self, *args: Any, **options: Any) -> bool:
        return False


@dataclass(frozen=True)
class Graded:
    """Outcome of a patch, or the grader's error; and hits of the scan."""

    outcome: str
    hits: tuple[str, ...]


@dataclass(frozen=True)
class Bench:
    """Grades patches."""

    images: Path
    sdists: Path
    sandbox: Bwrap
    timeout_s: float
    share: float
    """Of the default audit."""
    references: References
    scan_ms: list[float] = field(default_factory=list)

    def image(self, mini: MiniTask) -> LocalImage:
        return open_image(mini.package, self.images, self.sdists)

    def grade(
        self,
        mini: MiniTask,
        diff: bytes,
        store: TimedRuns,
        audit: Callable[[Path, float], Audit],
        share: float,
    ) -> Graded:
        image = self.image(mini)
        task = RolloutTask(
            mini.instance_id, image.image_name, "", tuple(mini.fail_to_pass), tuple(mini.pass_to_pass)
        )
        with Scratch() as scratch:
            try:
                run = run_tests(
                    task,
                    image,
                    diff,
                    store,
                    self.sandbox,
                    timeout_s=self.timeout_s,
                    plans=TimedTests(),
                    references=self.references,
                    audit=audit(scratch / "audit", share),
                )
            except GraderError as error:
                return Graded(str(error), ())
        return Graded(decide(task, run).value, run.hits)

    def scan(self, mini: MiniTask, diff: bytes) -> None:
        """Note how long the scan of a patch takes, with the files that it reads."""
        image = self.image(mini)
        base = image.base(mini.instance_id)
        right = image.right(base)
        protection = Protection(mini.test_files, (), ())

        def read(revision: str, path: str) -> bytes | None:
            with suppress(UserError):
                return image.file_at(revision, path)

        started_s = time.perf_counter()
        scan_patch(diff, before=partial(read, base), accepted=partial(read, right), skip=protection.steers)
        self.scan_ms.append(1000 * (time.perf_counter() - started_s))


@dataclass(frozen=True)
class Cost:
    """What one gold patch costs."""

    run: Spent
    """One run of the tests."""
    own: Spent
    """What the audit adds to it."""
    once: Spent
    """What it adds for the first patch of a task alone."""
    chance: float
    """That the patch is audited by default."""


def cost(bench: Bench, mini: MiniTask, diff: bytes) -> tuple[Graded, Cost]:
    """Grade a gold patch without audit and with it, and another like it with it, since runs are drawn by lot."""
    plain, store = TimedRuns(), TimedRuns()
    bench.grade(mini, diff, plain, NoAudit, 0)
    run = plain.took(set(plain.asked))
    graded = bench.grade(mini, diff, store, Audit, 1)
    first = set(store.asked)
    once = store.took(first & store.right)
    store.asked.clear()
    bench.grade(mini, gold(mini, bench.image(mini), bench.sandbox, b"# end\n"), store, Audit, 1)
    own = [store.took(keys - store.right) - run for keys in (first, set(store.asked))]
    mean = Spent(statistics.mean(spent.cpu for spent in own), statistics.mean(spent.wall for spent in own))
    return graded, Cost(run, mean, once, 1.0 if graded.hits else bench.share)


def ratios(costs: Sequence[Cost]) -> dict[str, float]:
    """The figures of time, of `costs` that are not empty."""
    figures: dict[str, float] = {}
    for unit, suffix in (("cpu", ""), ("wall", "_wall")):
        seconds = [tuple(getattr(spent, unit) for spent in (cost.run, cost.own, cost.once)) for cost in costs]
        full = [(own + once) / run for run, own, once in seconds]
        chances = [cost.chance for cost in costs]
        figures |= {
            f"extra_time{suffix}": statistics.mean(c * extra for c, extra in zip(chances, full, strict=True)),
            f"extra_time_full{suffix}": statistics.mean(full),
            f"once{suffix}": statistics.mean(once / run for run, _, once in seconds),
            f"run{suffix}_s": statistics.mean(run for run, _, _ in seconds),
        }
    return figures


# ----------------------------------------------------------------------------------------------------- the benchmark


def grade_right(bench: Bench, golds: Sequence[MiniTask], timed: int, honest: int) -> dict[str, Any]:
    """Grade gold and honest patches; returns the figures."""
    by_id = {task.instance_id: task for task in all_tasks()}
    files = [(by_id[name], path) for name, paths in honest_patches().items() for path in paths][:honest]
    progress = Progress("right patches", len(golds) + len(files), unit="patches")
    costs: list[Cost] = []
    graded: list[Graded] = []

    def note(name: str, mini: MiniTask, diff: bytes, result: Graded) -> None:
        graded.append(result)
        bench.scan(mini, diff)
        if result.outcome != "solved" or result.hits:
            print(f"{name}: {result.outcome}; hits: {', '.join(result.hits) or 'none'}", flush=True)
        progress.step()

    for number, mini in enumerate(golds):
        diff = gold(mini, bench.image(mini), bench.sandbox)
        if number < timed:
            result, spent = cost(bench, mini, diff)
            costs.append(spent)
        else:
            result = bench.grade(mini, diff, TimedRuns(), Audit, 1)
        note(mini.instance_id, mini, diff, result)
    for mini, path in files:
        diff = path.read_bytes()
        note(path.name, mini, diff, bench.grade(mini, diff, TimedRuns(), Audit, 1))
    progress.close()
    suspicious = sum(bool(result.hits) for result in graded)
    return {
        **(ratios(costs) if costs else {}),
        "suspicious": suspicious / max(len(graded), 1),
        "refused": sum(result.outcome != "solved" for result in graded),
        "gold": len(golds),
        "honest": len(files),
        "timed": len(costs),
        "packages": len({mini.package for mini in golds[:timed]}),
    }


def grade_forged(
    bench: Bench, pairs: Sequence[tuple[MiniTask, str]], forgers: Mapping[str, bytes], workers: int
) -> dict[str, int]:
    """Grade each forger on its tasks; returns the figures and prints those of each."""
    pythonpaths = {source.package: source.pythonpath for source in load_sources(SOURCES)}
    progress = Progress("forgers", len(pairs), unit="gradings")
    counts: dict[str, Counter[str]] = {name: Counter() for name in forgers}

    def forge(mini: MiniTask, name: str) -> bytes:
        code = forgers[name].replace(b"MODULE", module_name(mini.path, pythonpaths[mini.package]).encode())
        diff = patch(mini, bench.image(mini), bench.sandbox, lambda old: old.rstrip(b"\n") + b"\n" + code)
        bench.scan(mini, diff)
        return diff

    def grade(mini: MiniTask, diff: bytes) -> tuple[Graded, Graded]:
        as_written = bench.grade(mini, diff, TimedRuns(), NoAudit, 0)
        return as_written, bench.grade(mini, diff, TimedRuns(), Audit, bench.share)

    tasks, names = [task for task, _ in pairs], [name for _, name in pairs]
    diffs = list(map(forge, tasks, names))  # one at a time, since scans are timed
    with ThreadPoolExecutor(workers) as pool:
        for mini, name, (as_written, graded) in zip(tasks, names, pool.map(grade, tasks, diffs), strict=True):
            found = {
                "forged": True,
                "forged_passed": as_written.outcome == "solved",
                "forged_paid": graded.outcome == "solved",
                "forged_unseen": not graded.hits,
            }
            counts[name].update([figure for figure, holds in found.items() if holds])
            counts[name].update([f"outcome {graded.outcome}"])
            if graded.outcome == "solved":
                print(
                    f"{name} is paid for {mini.instance_id}; hits: {', '.join(graded.hits) or 'none'}",
                    flush=True,
                )
            progress.step()
    progress.close()
    for name, found in counts.items():
        print(f"{name}: {', '.join(f'{figure} {number}' for figure, number in sorted(found.items()))}")
    total = sum(counts.values(), Counter[str]())
    return {figure: total[figure] for figure in ("forged_paid", "forged_passed", "forged_unseen", "forged")}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--gold", type=int, default=120, help="gold patches (default %(default)s)")
    add("--timed", type=int, default=60, help="of these, how many are timed (default %(default)s)")
    add("--honest", type=int, default=10**6, help="honest patches (default: all)")
    add(
        "--tasks", type=int, default=200, help="tasks for the forgers, one each in turn (default %(default)s)"
    )
    add("--forgers", nargs="+", default=(), metavar="NAME", help="these alone")
    add("--all-forgers", action="store_true", help="every forger on every one of the tasks")
    add("--no-references", action="store_true", help="right code is run as needed")
    add("--share", type=float, help="of the audit (default: agent.audit_share of config.yaml)")
    add("--workers", type=int, default=2, help="forgers graded at a time (default %(default)s)")
    add("--images", type=Path, default=REPOSITORY / "work/mini/images")
    add("--sdists", type=Path, default=REPOSITORY / "work/mini/sdists")
    add("--timeout-s", type=float, default=60, help="processor time of one test run (default %(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.platform()}")
    share = args.share
    if share is None:
        share = yaml.safe_load((REPOSITORY / "config.yaml").read_text())["agent"]["audit_share"]
    references = References() if args.no_references else References.read(REFERENCES)
    bench = Bench(args.images, args.sdists, Bwrap.find(TESTBED), args.timeout_s, share, references)
    figures = grade_right(bench, sample(args.gold), args.timed, args.honest)
    forgers = load_forgers(args.forgers)
    names, tasks = list(forgers), sample(args.tasks)
    if args.all_forgers:
        pairs = [(task, name) for task in tasks for name in names]
    else:
        # Packages come in turn as well: each forger meets all of them.
        chance = random.Random(1)
        turns = [chance.sample(names, len(names)) for _ in range(0, len(tasks), len(names))]
        pairs = list(zip(tasks, (name for turn in turns for name in turn), strict=False))
    figures |= grade_forged(bench, pairs, forgers, args.workers)
    if bench.scan_ms:
        figures |= {"scan_ms": statistics.median(bench.scan_ms), "scan_max_ms": max(bench.scan_ms)}
    print(json.dumps({"share": share} | {name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    run_script(main)
