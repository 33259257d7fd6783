"""Certifies the miniature's tasks in a kind of workspace: the gold patch must be solved, and no patch at all must not.

    uv run python benchmarks/certification.py --workspace docker --log work/certification

All tasks that the miniature's filters keep, and the held-out ones; each patch takes the way of a rollout
(`grading/validate.py`). For bwrap the repositories are built from the sdists of `make mini`; docker and pod take the
images that

    uv run snakemake --profile mini --configfile config/mini.yaml config/mini-docker.yaml -- prepare_images \
        prepare_verified_images

has made. Pods are made of plain containers of this machine's daemon, as `lightning_smith/sandbox/pod.py` asks for them,
and `lightning_smith.grading.pod_tasks` runs in them from the image's own /opt/agent (needs root). Run it again after an
interruption: no run with a verdict is made twice. The last line is one JSON object:

    workspace, tasks    what was certified, with one run of each of a task's two patches
    gold, empty         outcomes of the patches, by name
    wrong               tasks that are not what they say, with the reason
    wall_s              seconds in all, of this run
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grading import SOURCES, TASKS, TESTBED, open_image

from lightning_smith.contracts.validation import (
    Patch,
    ValidationLog,
    ValidationRecord,
    read_records,
    verdicts,
)
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.funnel.filters.statement import why_dropped
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.validate import BuggyTask, TaskRooms, draw_ids, validate
from lightning_smith.images.daemon import Daemon, connect
from lightning_smith.miniature.tasks.release import release_rows
from lightning_smith.release.columns import Task
from lightning_smith.repositories.names import image_key
from lightning_smith.sandbox import executor
from lightning_smith.sandbox.bwrap import ResourceLimits
from lightning_smith.sandbox.rooms import open_room

sys.path.insert(0, str(REPOSITORY / "tests/support"))

MOST_TESTS = 200
"""`filters.test_count.limit`."""


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workspace", choices=("bwrap", "docker", "pod"), required=True)
    add("--count", type=int, default=10**9, help="so many tasks of each package (default: all)")
    add("--timeout", type=float, default=15, help="processor seconds of one test run (default %(default)s)")
    add("--workers", type=int, default=2, help="test runs, or pods, at a time (default %(default)s)")
    add("--sdists", type=Path, default=REPOSITORY / "work/mini/sdists")
    add("--log", type=Path, required=True, help="folder of logs, read on a rerun, and of built repositories")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    started_s = time.monotonic()
    packages = kept_rows(args.sdists, args.count)
    rows = [row for members in packages.values() for row in members]
    folder = (args.log / args.workspace).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if args.workspace == "pod":
        records = certify_in_pods(rows, folder, args.workers, args.timeout)
    else:
        images = args.log.resolve() / "images"
        if args.workspace == "bwrap":
            for package in packages:
                open_image(package, images, args.sdists)
        records = certify(rows, args.workspace, images, folder, args.workers, args.timeout)
    found = verdicts(records, 1)
    outcomes = {patch: Counter(r.outcome.value for r in records if r.patch is patch) for patch in Patch}
    summary = {
        "workspace": args.workspace,
        "tasks": len(found),
        **{patch.value: dict(counts) for patch, counts in outcomes.items()},
        "wrong": {name: reason for name, reason in sorted(found.items()) if reason},
        "wall_s": round(time.monotonic() - started_s),
    }
    print(json.dumps(summary))


def kept_rows(sdists: Path, count: int) -> dict[str, list[Task]]:
    """`count` tasks of each package that have a branch, a statement and not too many tests."""
    packages: dict[str, list[Task]] = defaultdict(list)
    for role in ("train", "heldout"):
        for task, row in release_rows(SOURCES, TASKS, sdists, role):
            if task.branch and not why_dropped(row.problem_statement) and task.test_count <= MOST_TESTS:
                packages[task.package].append(row)
    drawn = {name: draw_ids((row.instance_id for row in rows), count) for name, rows in packages.items()}
    return {name: [row for row in rows if row.instance_id in drawn[name]] for name, rows in packages.items()}


def certify(
    rows: Iterable[Task], workspace: str, images: Path, folder: Path, workers: int, timeout_s: float
) -> list[ValidationRecord]:
    """Certify tasks in bubblewrap or containers."""
    tasks = [BuggyTask.from_row(row.to_row(), f"row {row.instance_id}") for row in rows]
    room = open_room(workspace, images, TESTBED)
    rooms = TaskRooms(room, open_plans("image"), timeout_s=timeout_s, scratch=folder / "scratch")
    log = ValidationLog(folder / "log.jsonl")
    return validate(
        lambda: tasks, rooms, log, runs=1, workers=workers, total=len(tasks), max_invalid_fraction=1.0
    )


def certify_in_pods(
    rows: Iterable[Task], folder: Path, pods: int, timeout_s: float
) -> list[ValidationRecord]:
    """Certify tasks, a pod for each image."""
    rows = list(rows)
    write_jsonl(folder / "tasks.jsonl", (row.to_row() for row in rows))
    names = sorted({row.image_name for row in rows})
    with connect() as daemon, ThreadPoolExecutor(pods) as pool:
        for name, last in pool.map(
            lambda name: (name, certify_in_pod(daemon, name, folder, timeout_s)), names
        ):
            print(f"[pods] {name}: {last}", file=sys.stderr, flush=True)
    wanted = {row.instance_id for row in rows}
    found = read_records(folder / image_key(name) / "log.jsonl" for name in names)
    return [record for record in found if record.instance_id in wanted]


def certify_in_pod(daemon: Daemon, name: str, folder: Path, timeout_s: float) -> str:
    """Certify tasks of an image in a pod; returns what the harness said of them, or at last."""
    from plain_pod import PlainPod

    logs = folder / image_key(name)
    logs.mkdir(exist_ok=True)
    os.chown(logs, executor.OWN_USER, executor.OWN_USER)
    pod = PlainPod(daemon, name, ResourceLimits(), tag=f"{name}:openai")
    try:
        said = pod.run_harness(
            *("-m", "lightning_smith.grading.pod_tasks", "--pod", "/run/pod", "--tasks", "/run/tasks.jsonl"),
            *("--timeout", str(timeout_s), "--log", "/run/log/log.jsonl"),
            binds=[f"{logs}:/run/log", f"{folder}/tasks.jsonl:/run/tasks.jsonl:ro"],
        )
    finally:
        pod.close()
    if not (logs / "log.jsonl").exists():
        raise UserError(f"nothing was tested in a pod of {name}: {said.strip()[-500:]}")
    lines = said.strip().splitlines()
    return next((line for line in lines if " tasks: " in line), lines[-1])


if __name__ == "__main__":
    run_script(main)
