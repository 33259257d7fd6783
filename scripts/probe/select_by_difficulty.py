"""Choose tasks from the probe log: to validate on, and to train on mixed ones and a sample of those never solved.

Needs nothing but the log, so the choice can be derived again anywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import SelectStage
from lightning_smith.contracts.outcome import RolloutRecord
from lightning_smith.core.errors import run_script
from lightning_smith.core.files import read_jsonl
from lightning_smith.core.provenance import write_manifest
from lightning_smith.core.tables import write_table
from lightning_smith.probe.select import Difficulty, judge_all, refuse_lost, select

COLUMNS = ("instance_id", "difficulty", "solved", "valid", "rollouts", "chosen")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, SelectStage)
    add = parser.add_argument
    add("--log", type=Path, required=True, help="the probe log")
    add("--out", type=Path, required=True, help="table of all probed tasks: " + ", ".join(COLUMNS))
    add("--summary", type=Path, required=True, help="JSON: counts, lost tasks")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    stage: SelectStage = read_settings(args, SelectStage)
    wanted = stage.selection
    records = [RolloutRecord.from_dict(row) for row in read_jsonl(args.log)]
    tasks = judge_all(records, stage.samples)
    refuse_lost(tasks, records, stage.max_lost_fraction)
    selection = select(
        tasks,
        mixed_limit=wanted.mixed_limit,
        all_failed=wanted.all_failed_sample,
        validation=wanted.validation_tasks,
        validation_pool=[Difficulty(name) for name in wanted.validation_pool],
        seed=wanted.seed,
    )
    rows = ([row[name] for name in COLUMNS] for row in selection.rows())
    write_manifest(args.summary, selection.summary())
    write_table(args.out, COLUMNS, rows)
    for side, counts in (
        ("train", selection.summary()["train"]),
        ("validate", selection.summary()["validation"]),
    ):
        parts = ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"{sum(counts.values())} of {len(tasks)} probed tasks {side} ({parts})")
    if (found := selection.summary()["train"]["all_failed"]) < wanted.all_failed_sample:
        print(
            f"warning: {wanted.all_failed_sample} tasks solved in no rollout were to train, and there are {found}"
        )


if __name__ == "__main__":
    run_script(main)
