"""Roll a checkpoint out on held-out tasks and write predictions for the official grading.

Run it again after an interruption: it goes on from its log, and no rollout with an outcome is run twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned, stage_lock
from lightning_smith.core.provenance import code_version
from lightning_smith.evaluation.predict import PredictSettings, predict
from lightning_smith.gateway.launch import PolicyServer
from lightning_smith.probe.run import folder_revision
from lightning_smith.release.evaluation_set import choose_tasks, read_tasks
from lightning_smith.training.export import require_export


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", type=Path, required=True, help="held-out tasks, parquet in swebench's version 5 format")
    add("--dataset", required=True, help="name of the held-out data set in tables")
    add("--instances", type=whole(0), default=0, help="how many tasks are drawn; 0 (the default) for all")
    add("--samples", type=whole(1), default=1, help="rollouts a task (default %(default)s)")
    add("--seed", type=whole(0), required=True, help="of the draw and of every rollout's own seed")
    add("--recipe", required=True, help="training recipe of the checkpoint, for names and tables")
    add(
        "--step", type=whole(0), required=True, help="step of the checkpoint; 0 is the policy before training"
    )
    add("--model", type=Path, required=True, help="Hugging Face folder of the policy")
    add("--export-manifest", type=Path, help="of the folder, whose files must be the ones that it lists")
    add("--model-name", required=True, help="name of the policy in requests and records")
    add("--model-revision", help="revision in the records (default: a hash of the folder)")
    add("--dtype", default="float32", help="of the policy server (default %(default)s)")
    add("--context", type=whole(1), required=True, help="tokens that the policy can hold, prompt and answer")
    add("--temperature", type=number(0, 2), required=True, help="of the policy")
    add("--images", type=Path, required=True, help="folder of the images")
    add(
        "--manifests",
        type=Path,
        help="folder of manifests of prepared images, compared with what rollouts record",
    )
    add(
        "--settings",
        type=json.loads,
        required=True,
        help="JSON of the agent's limits (`agent` of config.yaml)",
    )
    add("--workspace", default="bwrap", help="backends.workspace (default %(default)s)")
    add("--work", type=Path, required=True, help="folder for log, patches, trajectories and scratch trees")
    add("--logs", type=Path, help="folder of the services' logs (default: logs/ in --work)")
    add("--out", type=Path, required=True, help="folder for sample_<k>/preds.jsonl and run.json")
    add("--max-rollouts", type=whole(1), default=32, help="rollouts at once (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a rollout without an outcome (default %(default)s)")
    add(
        "--max-invalid-fraction",
        type=number(0, 1),
        default=0.02,
        help="rollouts that may lack an outcome, 0..1 (default %(default)s); they count as missing",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Choose the tasks, run them and say what came out."""
    args = parse_args(argv)
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    if args.export_manifest:
        require_export(args.export_manifest, args.model)
    tasks = choose_tasks(read_tasks(args.tasks), args.instances or None, args.seed)
    settings = PredictSettings(
        dataset=args.dataset,
        dataset_file=args.tasks,
        images=args.images,
        manifests=args.manifests,
        workspace=args.workspace,
        work=args.work,
        out=args.out,
        policy=PolicyServer(
            model_dir=args.model,
            model_name=args.model_name,
            revision=args.model_revision or folder_revision(args.model),
            dtype=args.dtype,
            max_model_len=args.context,
        ),
        recipe=args.recipe,
        step=args.step,
        samples=args.samples,
        seed=args.seed,
        temperature=args.temperature,
        context=args.context,
        agent=args.settings,
        max_rollouts=args.max_rollouts,
        retries=args.retries,
        max_invalid_fraction=args.max_invalid_fraction,
        logs=args.logs,
    )
    with stage_lock(args.work, "predict"):
        records = predict(settings, tasks)
    submitted = sum(record.outcome is None for record in records)
    print(f"{len(records)} rollouts of {len(tasks)} tasks, {submitted} submitted, in {args.out}")


if __name__ == "__main__":
    run_script(main)
