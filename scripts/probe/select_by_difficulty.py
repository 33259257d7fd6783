"""Choose tasks from the probe log: to validate on, and to train on mixed ones and a sample of those never solved.

Needs nothing but the log, so the choice can be derived again anywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.contracts.outcome import RolloutRecord
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.files import read_jsonl, write_atomic
from lightning_smith.core.provenance import write_manifest
from lightning_smith.probe.select import DIFFICULTIES, Difficulty, judge_all, refuse_lost, select

COLUMNS = ("instance_id", "difficulty", "solved", "valid", "rollouts", "chosen")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--log", type=Path, required=True, help="the probe log")
    add("--samples", type=whole(1), default=4, help="valid rollouts that a task needs (default %(default)s)")
    add("--mixed-limit", type=whole(0), default=0, help="mixed tasks at most; 0 (the default) for all")
    add(
        "--all-failed",
        type=whole(0),
        default=0,
        help="tasks never solved that are drawn (default %(default)s)",
    )
    add("--validation", type=whole(0), default=0, help="tasks held aside before that (default %(default)s)")
    add(
        "--validation-pool",
        nargs="+",
        choices=[*DIFFICULTIES],
        default=[*DIFFICULTIES],
        help="what these are drawn from (default: all that were probed)",
    )
    add("--seed", type=whole(0), required=True, help="of all draws")
    add(
        "--max-lost-fraction",
        type=number(0, 1),
        default=0.0,
        help="tasks without rollouts enough, 0..1 (default 0)",
    )
    add("--out", type=Path, required=True, help="table of all probed tasks: " + ", ".join(COLUMNS))
    add("--summary", type=Path, required=True, help="JSON: counts, lost tasks")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    records = [RolloutRecord.from_dict(row) for row in read_jsonl(args.log)]
    tasks = judge_all(records, args.samples)
    refuse_lost(tasks, records, args.max_lost_fraction)
    selection = select(
        tasks,
        mixed_limit=args.mixed_limit or None,
        all_failed=args.all_failed,
        validation=args.validation,
        validation_pool=[Difficulty(name) for name in args.validation_pool],
        seed=args.seed,
    )
    rows = [COLUMNS, *([str(row[name]) for name in COLUMNS] for row in selection.rows())]
    write_manifest(args.summary, selection.summary())
    write_atomic(args.out, "".join("\t".join(row) + "\n" for row in rows))
    for side, counts in (
        ("train", selection.summary()["train"]),
        ("validate", selection.summary()["validation"]),
    ):
        parts = ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"{sum(counts.values())} of {len(tasks)} probed tasks {side} ({parts})")
    if (found := selection.summary()["train"]["all_failed"]) < args.all_failed:
        print(f"warning: {args.all_failed} tasks solved in no rollout were to train, and there are {found}")


if __name__ == "__main__":
    run_script(main)
