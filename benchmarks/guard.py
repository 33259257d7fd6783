"""How often the guard refuses a command that breaks no rule, and what it costs.

    uv run python benchmarks/guard.py [--commands FILE]

The sample is tests/data/commands.jsonl: commands of real trajectories, each with the verdict of a reviewer
(`expected`: allowed, the kind that it should be refused as, or `python` where a rule is broken inside of a Python
program, which the guard does not read) and its origin:

- mini-swe-agent@<commit>: trajectories in the repository of github.com/SWE-agent/mini-swe-agent (MIT licence) and its
  forks, in which git and pip were allowed. 12,504 different commands, drawn by program and length.
- NeMo-Gym: `responses_api_agents/mini_swe_agent_2` of github.com/NVIDIA-NeMo/Gym (Apache-2.0), all of its example.

The last line is one JSON object:

    legitimate, falsely_blocked   commands that break no rule, and how many of them are refused
    forbidden, missed             commands that break one in bash, and how many of them are not refused for it
    in_python                     commands that break one in Python; let through by design
    opaque                        commands whose text does not say what they start, all of them let through
    median_ms, p99_ms, max_ms     time a command
    import_ms                     time to import the guard, once a process that rollouts are forked from
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import read_jsonl

COMMANDS = Path(__file__).resolve().parents[1] / "tests/data/commands.jsonl"
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--commands", type=Path, default=COMMANDS, help="JSON lines (default: the committed ones)"
    )
    args = parser.parse_args()
    if not args.commands.is_file():
        raise UserError(f"{args.commands} is no file: give JSON lines with `command` and `expected`")
    started_s = time.perf_counter()
    from lightning_smith.agent.guard import Kind, inspect

    import_s = time.perf_counter() - started_s
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.platform()}")
    figures = dict.fromkeys(
        ("legitimate", "falsely_blocked", "forbidden", "missed", "in_python", "opaque"), 0
    )
    times_s: list[float] = []
    for row in read_jsonl(args.commands):
        command, expected = row["command"], row["expected"]
        started_s = time.perf_counter()
        for _ in range(REPEATS):
            decision = inspect(command)
        times_s.append((time.perf_counter() - started_s) / REPEATS)
        found = decision.refusal.kind.value if decision.refusal else "allowed"
        figures["opaque"] += bool(decision.opaque)
        if expected in set(Kind):
            figures["forbidden"] += 1
            figures["missed"] += found != expected
        elif expected == "python":
            figures["in_python"] += 1
        else:
            figures["legitimate"] += 1
            figures["falsely_blocked"] += found != "allowed"
        if found != expected and expected != "python":
            print(f"{found} instead of {expected}: {command!r}")
    times_s.sort()
    milliseconds = {
        "median_ms": times_s[len(times_s) // 2],
        "p99_ms": times_s[int(len(times_s) * 0.99)],
        "max_ms": times_s[-1],
        "import_ms": import_s,
    }
    print(json.dumps(figures | {name: round(1000 * value, 3) for name, value in milliseconds.items()}))


if __name__ == "__main__":
    run_script(main)
