"""Run the whole miniature from nothing, in folders of its own, and print where time and memory go.

    uv run python benchmarks/miniature.py [--keep] [--overlay FILE]

Environments and sdists are made first, kept for the next run, and not counted. The last line is one JSON object:

    total_s             wall clock of the workflow
    peak_mb             largest sum of the proportional set sizes of all its processes, sampled
    rollouts_per_hour   rollouts of probe, training and evaluation over the seconds of those stages
    rollout_overhead_s  mean over the probe's rollouts of wall clock less the policy's and the tests' seconds
    stages_s            seconds by rule, summed over its jobs
    loop_s              seconds of a fixed loop of Python on one core, before and after: how fast the machine was
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import yaml

from lightning_smith.core.files import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
NAME = "mini-benchmark"
KEPT = ("envs", "sdists")
ROLLOUT_RULES = ("probe", "train_segment", "predict", "grade")


class MemoryPeak(threading.Thread):
    """Samples the proportional set size of a process and all its descendants; `peak_mb` is the largest sum."""

    def __init__(self, pid: int, every_s: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.root, self.every_s, self.peak_mb, self.ended = (
            psutil.Process(pid),
            every_s,
            0.0,
            threading.Event(),
        )

    def run(self) -> None:
        while not self.ended.wait(self.every_s):
            total = 0
            with contextlib.suppress(psutil.Error):
                for process in [self.root, *self.root.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        total += process.memory_full_info().pss
            self.peak_mb = max(self.peak_mb, total / 2**20)


def snakemake(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", "--profile", "mini", *arguments]


def remove(dirs: dict[str, str]) -> None:
    """Remove what a run made, but not the environments' records and the sdists."""
    for folder in dirs.values():
        for path in (ROOT / folder).glob("*"):
            if path.name in KEPT:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def time_loop() -> float:
    """Seconds that the interpreter takes to add up six million numbers."""
    started, total = time.perf_counter(), 0
    for number in range(6_000_000):
        total += number * number % 7
    return round(time.perf_counter() - started, 3)


def stage_seconds(folder: Path) -> dict[str, float]:
    """Seconds by rule, from Snakemake's benchmark files `<rule>/<job>.tsv`."""
    seconds: dict[str, float] = {}
    for path in sorted(folder.rglob("*.tsv")):
        rule = path.relative_to(folder).parts[0].removesuffix(".tsv")
        with path.open(newline="") as file:
            seconds[rule] = seconds.get(rule, 0.0) + sum(
                float(row["s"]) for row in csv.DictReader(file, delimiter="\t")
            )
    return {rule: round(value, 1) for rule, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="leave the run's folders")
    parser.add_argument(
        "--overlay", type=Path, help="configuration laid over config/mini.yaml, to measure another size"
    )
    args = parser.parse_args()

    dirs = {key: f"{key}/{NAME}" for key in ("data", "work", "results")}
    remove(dirs)
    (ROOT / dirs["work"]).mkdir(parents=True, exist_ok=True)
    overlay = ROOT / dirs["work"] / "dirs.yaml"
    overlay.write_text(yaml.safe_dump({"experiment": NAME, "dirs": dirs}))
    configs = ["config/mini.yaml", *([str(args.overlay)] if args.overlay else []), str(overlay)]
    common = ["--configfile", *configs, "--"]

    ready = [f"{dirs['work']}/envs/{env}.json" for env in ("mini", "eval", "testbed")]
    subprocess.run(snakemake(*common, "fetch_sdists", *ready), cwd=ROOT, check=True)

    loop_s = [time_loop()]
    started = time.monotonic()
    run = subprocess.Popen(snakemake(*common, "all"), cwd=ROOT)
    memory = MemoryPeak(run.pid)
    memory.start()
    code = run.wait()
    total_s = time.monotonic() - started
    memory.ended.set()
    loop_s.append(time_loop())
    if code:
        sys.exit(f"the miniature failed with exit code {code}")

    stages = stage_seconds(ROOT / dirs["work"] / "benchmarks")
    probe = list(read_jsonl(ROOT / dirs["data"] / "probe" / "log.jsonl"))
    rollouts = len(probe)
    for recipe in sorted((ROOT / dirs["results"] / "train").iterdir()):
        last = max(recipe.glob("step_*.json"), key=lambda path: int(path.stem.removeprefix("step_")))
        rollouts += json.loads(last.read_text())["metrics"]["rollouts"]
    for counts in sorted((ROOT / dirs["results"]).glob("eval/*/step_*/counts.json")):
        summary = json.loads(counts.read_text())
        rollouts += summary["instances"] * summary["samples"]
    busy_s = sum(stages.get(rule, 0.0) for rule in ROLLOUT_RULES)
    overhead = [row["wall_s"] - row["model_s"] - row["grade_s"] for row in probe]
    for rule, seconds in sorted(stages.items(), key=lambda item: -item[1]):
        print(f"{seconds:8.1f} s  {rule}")
    print(f"{platform.processor() or platform.machine()}, {psutil.cpu_count()} cores, {platform.platform()}")
    if not args.keep:
        remove(dirs)
    figures = {
        "total_s": round(total_s, 1),
        "peak_mb": round(memory.peak_mb),
        "rollouts_per_hour": round(rollouts / busy_s * 3600),
        "rollout_overhead_s": round(sum(overhead) / len(overhead), 3),
        "rollouts": rollouts,
        "stages_s": stages,
        "loop_s": loop_s,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
