"""Roll a checkpoint out on held-out tasks and write predictions for the official grading.

Run it again after an interruption: it goes on from its log, and no rollout with an outcome is run twice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import PredictStage
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.provenance import code_version
from lightning_smith.evaluation.predict import PredictSettings, predict
from lightning_smith.gateway.launch import PolicyServer
from lightning_smith.probe.run import folder_revision
from lightning_smith.release.evaluation_set import choose_tasks, read_tasks
from lightning_smith.training.export import require_export


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, PredictStage)
    add = parser.add_argument
    add("--tasks", type=Path, required=True, help="held-out tasks, parquet in swebench's version 5 format")
    add(
        "--step", type=whole(0), required=True, help="step of the checkpoint; 0 is the policy before training"
    )
    add("--export-manifest", type=Path, help="of the export, whose files must be the ones that it lists")
    add("--out", type=Path, required=True, help="folder for sample_<k>/preds.jsonl and run.json")
    add("--max-rollouts", type=whole(1), default=32, help="rollouts at once (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a rollout without an outcome (default %(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Choose the tasks, run them and say what came out."""
    args = parse_args(argv)
    stage: PredictStage = read_settings(args, PredictStage)
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    model = stage.exports / f"step_{args.step}" if args.step else Path(stage.policy.model)
    if args.export_manifest:
        require_export(args.export_manifest, model)
    chosen = stage.evaluation
    tasks = choose_tasks(read_tasks(args.tasks), chosen.instances, chosen.seed)
    policy = PolicyServer(
        model_dir=model,
        model_name=stage.policy_name,
        revision=folder_revision(model),
        dtype=stage.dtype,
        max_model_len=stage.policy.max_model_len,
    )
    settings = PredictSettings(
        stage, args.step, policy, args.tasks, args.out, args.max_rollouts, args.retries
    )
    with stage_lock(settings.work, "predict"):
        records = predict(settings, tasks)
    submitted = sum(record.outcome is None for record in records)
    print(f"{len(records)} rollouts of {len(tasks)} tasks, {submitted} submitted, in {args.out}")


if __name__ == "__main__":
    run_script(main)
