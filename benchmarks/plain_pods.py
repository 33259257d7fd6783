"""Certifies tasks in pods made of plain containers: the gold patch must pass, and no patch at all must not.

    uv run python benchmarks/plain_pods.py --tasks data/mini-docker/candidates.parquet --count 4 --log work/plain_pods

Each image of the tasks, `<image_name>:openai` as `prepare_images` tags it, gets a pod of its own, with the containers
that `lightning_smith/rollout/pod.py` asks for; `lightning_smith.rollout.pod_tasks` runs in its harness, out of
the image's /opt/agent. Run it again after an interruption: no run with a verdict is made twice. Needs root and a Docker
daemon on this machine. The last line is one JSON object:

    images, tasks       how many were certified, with one run of each of a task's two patches
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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightning_smith.errors import UserError, run_script
from lightning_smith.files import write_jsonl
from lightning_smith.images.daemon import Daemon, connect
from lightning_smith.images.names import image_key
from lightning_smith.rollout import executor
from lightning_smith.rollout.bwrap import ResourceLimits
from lightning_smith.rollout.task import TaskFile
from lightning_smith.tasks.columns import SCHEMA, iter_batches
from lightning_smith.tasks.validation import Patch, read_records, verdicts

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", type=Path, required=True, help="SWE-smith rows, parquet")
    add("--count", type=int, default=10**9, help="so many tasks of each image (default: all)")
    add("--timeout", type=float, default=15, help="processor seconds of one test run (default %(default)s)")
    add("--pods", type=int, default=2, help="pods at a time (default %(default)s)")
    add("--log", type=Path, required=True, help="folder of the logs, one for each image; read on a rerun")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    started_s = time.monotonic()
    args.log.mkdir(parents=True, exist_ok=True)
    columns = [name for name in SCHEMA.names if name != "problem_statement"]
    rows = (row for batch in iter_batches([args.tasks], columns) for row in batch.to_pylist())
    write_jsonl(args.log / "tasks.jsonl", rows)
    names = sorted(TaskFile(args.log / "tasks.jsonl").image_names)
    with connect() as daemon, ThreadPoolExecutor(args.pods) as pool:
        for name, last in pool.map(lambda name: (name, certify(daemon, name, args)), names):
            print(f"[pods] {name}: {last}", file=sys.stderr, flush=True)
    records = read_records(args.log / image_key(name) / "log.jsonl" for name in names)
    outcomes = {patch: Counter(r.outcome.value for r in records if r.patch is patch) for patch in Patch}
    found = verdicts(records, 1)
    summary = {
        "images": len(names),
        "tasks": len(found),
        **{patch.value: dict(counts) for patch, counts in outcomes.items()},
        "wrong": {name: reason for name, reason in sorted(found.items()) if reason},
        "wall_s": round(time.monotonic() - started_s),
    }
    print(json.dumps(summary))


def certify(daemon: Daemon, name: str, args: argparse.Namespace) -> str:
    """Certify tasks of an image in a pod; returns what the harness said of them, or at last."""
    from plain_pod import PlainPod

    folder = (args.log / image_key(name)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, executor.OWN_USER, executor.OWN_USER)
    pod = PlainPod(daemon, f"{name}:openai", ResourceLimits())
    try:
        said = pod.run_harness(
            *("-m", "lightning_smith.rollout.pod_tasks", "--pod", "/run/pod", "--tasks", "/run/tasks.jsonl"),
            *("--count", str(args.count), "--timeout", str(args.timeout), "--log", "/run/log/log.jsonl"),
            binds=[f"{folder}:/run/log", f"{args.log.resolve()}/tasks.jsonl:/run/tasks.jsonl:ro"],
        )
    finally:
        pod.close()
    if not (folder / "log.jsonl").exists():
        raise UserError(f"nothing was tested in a pod of {name}: {said.strip()[-500:]}")
    lines = said.strip().splitlines()
    return next((line for line in lines if " tasks: " in line), lines[-1])


if __name__ == "__main__":
    run_script(main)
