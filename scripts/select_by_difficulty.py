"""Choose training tasks from the probe log: mixed ones, and a sample of those that no rollout solved.

Needs nothing but the log, so the choice can be derived again anywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.errors import run_script
from lightning_smith.files import read_jsonl, write_atomic, write_json
from lightning_smith.probe.select import Difficulty, select
from lightning_smith.rollout.outcome import RolloutRecord

COLUMNS = ("instance_id", "difficulty", "solved", "valid", "rollouts", "chosen")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--log", type=Path, required=True, help="the probe log")
    add("--samples", type=int, default=4, help="valid rollouts that a task needs (default %(default)s)")
    add("--mixed-limit", type=int, default=0, help="mixed tasks at most; 0 (the default) for all")
    add("--all-failed", type=int, default=0, help="tasks never solved that are drawn (default %(default)s)")
    add("--seed", type=int, required=True, help="of both draws")
    add("--out", type=Path, required=True, help="table of all probed tasks: " + ", ".join(COLUMNS))
    add("--summary", type=Path, required=True, help="JSON: counts, tasks to probe again, refused tasks")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    selection = select(
        (RolloutRecord.from_dict(row) for row in read_jsonl(args.log)),
        samples=args.samples,
        mixed_limit=args.mixed_limit or None,
        all_failed=args.all_failed,
        seed=args.seed,
    )
    rows = [COLUMNS, *([str(row[name]) for name in COLUMNS] for row in selection.rows())]
    write_json(args.summary, selection.summary())
    write_atomic(args.out, "".join("\t".join(row) + "\n" for row in rows))
    for name in selection.of(Difficulty.SAME_SEED):
        print(f"warning: {name} is refused, because some of its rollouts share a seed")
    for name in selection.of(Difficulty.TOO_FEW):
        valid = selection.tasks[name].valid
        print(f"warning: {name} has {valid} of {args.samples} valid rollouts: probe it again")
    counts = ", ".join(f"{count} {name}" for name, count in selection.summary()["counts"].items())
    print(f"{len(selection.chosen)} of {len(selection.tasks)} tasks chosen ({counts})")


if __name__ == "__main__":
    run_script(main)
