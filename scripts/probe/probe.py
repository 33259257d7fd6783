"""Probe tasks: roll the policy out a few times on each, and log every outcome.

Run it again after an interruption: it goes on from its log, and no rollout with a verdict is run twice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import ProbeStage
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.provenance import code_version, write_manifest
from lightning_smith.gateway.launch import PolicyServer
from lightning_smith.probe.rows import read_ids
from lightning_smith.probe.run import ProbeSettings, draw_tasks, folder_revision, run_probe


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, ProbeStage)
    add = parser.add_argument
    add(
        "--tasks", type=Path, required=True, help="candidates, parquet or JSON lines with SWE-smith's columns"
    )
    add(
        "--shard",
        type=whole(0),
        default=0,
        help="which part of the drawn tasks, from 0 (default %(default)s)",
    )
    add("--shards", type=whole(1), default=1, help="number of parts (default %(default)s)")
    add(
        "--out",
        type=Path,
        required=True,
        help="finished log, written last; its settings go to the same name with .settings.json",
    )
    add("--max-rollouts", type=whole(1), default=32, help="rollouts at once (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a rollout without a verdict (default %(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.shard >= args.shards:
        raise UserError(
            f"--shard {args.shard} is not below --shards {args.shards}: parts are numbered from 0"
        )
    stage: ProbeStage = read_settings(args, ProbeStage)
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    with stage_lock(stage.work, "probe"):
        model = Path(stage.policy.model)
        policy = PolicyServer(
            model_dir=model,
            model_name=stage.probe.policy,
            revision=folder_revision(model),
            max_model_len=stage.policy.max_model_len,
        )
        settings = ProbeSettings(stage, args.tasks, policy, args.max_rollouts, args.retries)
        ids = draw_tasks(read_ids(args.tasks), stage.probe.tasks, stage.probe.seed)
        tasks = ids[args.shard :: args.shards]
        records = run_probe(settings, tasks)
        write_manifest(args.out.with_suffix(".settings.json"), settings.deciding())
        write_jsonl(args.out, (record.to_dict() for record in records))
        solved = sum(record.reward == 1.0 for record in records)
        print(f"{len(records)} rollouts of {len(tasks)} tasks, {solved} solved, in {args.out}")


if __name__ == "__main__":
    run_script(main)
