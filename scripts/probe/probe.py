"""Probe tasks: roll the policy out a few times on each, and log every outcome.

Run it again after an interruption: it goes on from its log, and no rollout with a verdict is run twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lightning_smith.config.stage import AgentSettings
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.provenance import code_version, write_manifest
from lightning_smith.gateway.launch import PolicyServer
from lightning_smith.probe.rows import read_ids
from lightning_smith.probe.run import ProbeSettings, draw_tasks, folder_revision, run_probe


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--tasks", type=Path, required=True, help="candidates, parquet or JSON lines with SWE-smith's columns"
    )
    add("--count", type=whole(0), default=0, help="how many of them are drawn; 0 (the default) for all")
    add("--samples", type=whole(1), default=4, help="rollouts a task (default %(default)s)")
    add("--seed", type=whole(0), required=True, help="of the draw and of every rollout's own seed")
    add(
        "--shard",
        type=whole(0),
        default=0,
        help="which part of the drawn tasks, from 0 (default %(default)s)",
    )
    add("--shards", type=whole(1), default=1, help="number of parts (default %(default)s)")
    add("--model", type=Path, required=True, help="Hugging Face folder of the policy")
    add("--model-name", required=True, help="name of the policy in requests and records")
    add("--model-revision", help="revision in the records (default: a hash of the folder)")
    add("--dtype", default="float32", help="of the policy server (default %(default)s)")
    add("--temperature", type=number(0, 2), default=1.0, help="of the policy (default %(default)s)")
    add("--images", type=Path, required=True, help="folder of the images")
    add(
        "--manifests",
        type=Path,
        help="folder of manifests of prepared images, compared with what rollouts record",
    )
    add("--references", type=Path, help="what right code does with altered tests (default: run it as needed)")
    add("--workspace", default="bwrap", help="backends.workspace (default %(default)s)")
    add("--tests", default="image", help="backends.tests (default %(default)s)")
    add(
        "--work",
        type=Path,
        required=True,
        help="folder for the live log, which is read on a rerun under the same settings, services and trajectories",
    )
    add("--logs", type=Path, help="folder of the services' logs (default: logs/ in --work)")
    add(
        "--out",
        type=Path,
        required=True,
        help="finished log, written last; its settings go to the same name with .settings.json",
    )
    add(
        "--context",
        type=whole(1),
        help="tokens, prompt and answer, to serve it with (default: what it can hold)",
    )
    add("--settings", type=json.loads, required=True, help="JSON of the agent's limits, as in config.yaml")
    add(
        "--gradings",
        type=whole(1),
        default=2,
        help="test runs at a time, if the JSON does not say (default %(default)s)",
    )
    add("--max-rollouts", type=whole(1), default=32, help="rollouts at once (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a rollout without a verdict (default %(default)s)")
    add(
        "--max-invalid-fraction",
        type=number(0, 1),
        default=0.0,
        help="tasks that may lack one of their rollouts, 0..1 (default 0)",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.shard >= args.shards:
        raise UserError(
            f"--shard {args.shard} is not below --shards {args.shards}: parts are numbered from 0"
        )
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    with stage_lock(args.work, "probe"):
        policy = PolicyServer(
            model_dir=args.model,
            model_name=args.model_name,
            revision=args.model_revision or folder_revision(args.model),
            dtype=args.dtype,
            max_model_len=args.context,
        )
        settings = ProbeSettings(
            tasks=args.tasks,
            images=args.images,
            manifests=args.manifests,
            references=args.references,
            workspace=args.workspace,
            tests=args.tests,
            work=args.work,
            policy=policy,
            seed=args.seed,
            samples=args.samples,
            temperature=args.temperature,
            max_rollouts=args.max_rollouts,
            retries=args.retries,
            max_invalid_fraction=args.max_invalid_fraction,
            agent_settings=AgentSettings.from_dict({"gradings": args.gradings} | args.settings),
            logs=args.logs,
        )
        tasks = draw_tasks(read_ids(args.tasks), args.count or None, args.seed)[args.shard :: args.shards]
        records = run_probe(settings, tasks)
        write_manifest(args.out.with_suffix(".settings.json"), settings.deciding())
        write_jsonl(args.out, (record.to_dict() for record in records))
        solved = sum(record.reward == 1.0 for record in records)
        print(f"{len(records)} rollouts of {len(tasks)} tasks, {solved} solved, in {args.out}")


if __name__ == "__main__":
    run_script(main)
