"""The data funnel against the common way, on the same synthetic release of the true shape.

    uv run --with datasets==5.0.1 python benchmarks/funnel.py [--rows 59136] [--scratch FOLDER]

Ours are the scripts of the published filters and collect_candidates, one process after another, as the workflow runs
them. Theirs is one process that makes `list(load_dataset(...))` and filters that list in plain Python,
as batch runners of coding agents do. Both must drop the same rows for the same reasons and keep the same candidates,
column for column, or the benchmark fails. The release takes 0.4 GB of disk, the cache of `datasets` another 5.3 GB;
both lie in a temporary folder that is removed. The last line is one JSON object:

    speedup        seconds of theirs over seconds of ours, starts of the interpreters included
    memory_ratio   peak memory of ours over that of theirs
    peak_mb        largest resident set of any process of ours, as the kernel recorded it (wait4), MiB
    theirs_anonymous_mb   theirs without the pages of the memory-mapped cache
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from lightning_smith.core.errors import UserError, run_script

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 200
REASONS = ("null", "empty", "whitespace", "not_in_image", "too_many_tests")


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    cpu_s: float
    peak_mb: float
    """Its largest resident set, MiB."""


def run(*command: str | Path, **environment: str) -> Cost:
    """Run a process to its end.

    The caller must be small: until a child starts its own program, the kernel counts the caller's memory as its.
    """
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, env={**os.environ, **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"{' '.join(map(str, command[:2]))} ended with exit code {process.returncode}")
    return Cost(time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def ours(folder: Path, shards: list[Path], out: Path) -> dict[str, Cost]:
    """Run the scripts."""
    branches = sorted((folder / "branches").glob("*.json"))
    tables = [out / "filters" / f"{name}.tsv" for name in ("statement", "branch", "test_count")]
    readings, limit = ["--branches", *branches, "--readings", out / "readings.json"], ["--limit", str(LIMIT)]
    products = ["--funnel", out / "funnel.tsv", "--candidates", out / "candidates.parquet"]
    first = ["--shards", *shards]
    steps = {
        "filter_statement": [*first, "--out", tables[0]],
        "filter_branch": [*first, "--previous", tables[0], *readings, "--out", tables[1]],
        "filter_test_count": [*first, "--previous", tables[1], *limit, "--out", tables[2]],
        "collect_candidates": [*first, "--decisions", *tables, *products],
    }
    return {name: run(f"scripts/funnel/{name}.py", *flags) for name, flags in steps.items()}


def digest(rows: Any) -> str:
    """Of rows in order of their ids."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return total.hexdigest()


def summarize_ours(out: Path) -> dict[str, Any]:
    """What the files say."""
    from lightning_smith.funnel.ledger import read_funnel
    from lightning_smith.release.columns import read_tasks

    dropped = {row.reason: row.dropped for row in read_funnel(out / "funnel.tsv")}
    rows = [task.to_row() for task in read_tasks([out / "candidates.parquet"])]
    return {
        "dropped": {reason: dropped[reason] for reason in REASONS},
        "kept": len(rows),
        "rows": digest(rows),
    }


def theirs(folder: Path, shards: list[Path]) -> dict[str, Any]:
    """The whole release as a list of dictionaries, filtered by a loop."""
    import datasets

    datasets.disable_progress_bars()
    rows = list(datasets.load_dataset("parquet", data_files=[str(path) for path in shards], split="train"))
    branches = {}
    for path in (folder / "branches").glob("*.json"):
        listed = json.loads(path.read_text())
        branches[listed["image_name"]] = set(listed["branches"])
    dropped: Counter[str] = Counter()
    kept = []
    for row in rows:
        statement = row["problem_statement"]
        if not (statement or "").strip():
            dropped["null" if statement is None else "whitespace" if statement else "empty"] += 1
        elif row["instance_id"] not in branches[row["image_name"]]:
            dropped["not_in_image"] += 1
        elif len(set(row["FAIL_TO_PASS"]) | set(row["PASS_TO_PASS"])) > LIMIT:
            dropped["too_many_tests"] += 1
        else:
            kept.append(row)
    kept.sort(key=lambda row: row["instance_id"])
    status = Path("/proc/self/status").read_text().split("\n")
    anonymous_kb = next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
    seconds = time.time() - float(os.environ["STARTED"])
    found = {
        "dropped": {reason: dropped[reason] for reason in REASONS},
        "kept": len(kept),
        "rows": digest(kept),
    }
    return {**found, "seconds": seconds, "anonymous_mb": anonymous_kb / 1024}


def compare(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Generate, run both sides in processes of their own, compare, and return the figures."""
    folder, out = scratch / "release", scratch / "ours"
    made = run("benchmarks/synthetic_release.py", "--out", folder, "--rows", str(args.rows))
    print(f"generated in {made.seconds:.1f} s, {made.peak_mb:.0f} MB", flush=True)
    os.sync()  # else the side that runs first waits for the disk to take the release
    shards = sorted((folder / "data").glob("train-*.parquet"))
    size_mb = sum(path.stat().st_size for path in shards) / 2**20

    steps = ours(folder, shards, out)
    for name, cost in steps.items():
        print(f"{cost.seconds:8.1f} s {cost.peak_mb:8.0f} MB  {name}", flush=True)
    summaries = {}
    environment = {"HF_HOME": str(scratch / "hf"), "HF_HUB_OFFLINE": "1", "STARTED": str(time.time())}
    whole = run(__file__, "--side", "theirs", "--scratch", scratch, **environment)
    run(__file__, "--side", "ours", "--scratch", scratch)
    for side in ("ours", "theirs"):
        summaries[side] = json.loads((scratch / f"{side}.json").read_text())
    theirs_s, anonymous_mb = (summaries["theirs"].pop(key) for key in ("seconds", "anonymous_mb"))
    print(f"{theirs_s:8.1f} s {whole.peak_mb:8.0f} MB  list(load_dataset(...)) and a loop")
    if summaries["ours"] != summaries["theirs"]:
        raise UserError(f"the two sides differ: {json.dumps(summaries)}")
    print(f"equal: {summaries['ours']['kept']} candidates, dropped {summaries['ours']['dropped']}")
    ours_s, ours_mb = (
        sum(cost.seconds for cost in steps.values()),
        max(cost.peak_mb for cost in steps.values()),
    )
    return {
        "speedup": round(theirs_s / ours_s, 1),
        "memory_ratio": round(ours_mb / whole.peak_mb, 4),
        "peak_mb": round(ours_mb),
        "ours_s": round(ours_s, 1),
        "theirs_s": round(theirs_s, 1),
        "ours_cpu_s": round(sum(cost.cpu_s for cost in steps.values()), 1),
        "theirs_cpu_s": round(whole.cpu_s, 1),
        "theirs_peak_mb": round(whole.peak_mb),
        "theirs_anonymous_mb": round(anonymous_mb),
        "rows": args.rows,
        "release_mb": round(size_mb),
        "kept": summaries["ours"]["kept"],
        "dropped": summaries["ours"]["dropped"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=59_136, help="rows of the release (default %(default)s)")
    parser.add_argument("--scratch", type=Path, help="where the temporary folder is made")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        folder, shards = args.scratch / "release", sorted((args.scratch / "release/data").glob("train-*"))
        summary = theirs(folder, shards) if args.side == "theirs" else summarize_ours(args.scratch / "ours")
        (args.scratch / f"{args.side}.json").write_text(json.dumps(summary))
        return
    if not importlib.util.find_spec("datasets"):
        raise UserError(
            "datasets is not installed: uv run --with datasets==5.0.1 python benchmarks/funnel.py"
        )
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.platform()}")
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        figures = compare(args, Path(scratch))
    print(json.dumps(figures))


if __name__ == "__main__":
    run_script(main)
