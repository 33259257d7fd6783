"""Train one recipe up to one of its checkpoints.

Run it again after an interruption: it goes on from the newest whole live checkpoint, and inside an
interrupted step from the rollouts that had finished. A step that is reached already only gets its manifest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lightning_smith.config.recipes import parse_recipe
from lightning_smith.config.stage import AgentSettings
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned
from lightning_smith.core.provenance import code_version, write_manifest


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--recipe", required=True, help="name of the recipe")
    add(
        "--settings",
        type=json.loads,
        required=True,
        help="JSON of the recipe (`recipes.NAME` of config.yaml)",
    )
    add("--step", type=whole(0), required=True, help="train up to this step, one of the recipe's checkpoints")
    add("--tasks", type=Path, required=True, help="training tasks, JSON lines with SWE-smith's columns")
    add("--validation", type=Path, help="tasks that a recipe with validate_every is scored on, likewise")
    add(
        "--validation-temperature",
        type=number(0, 2),
        default=1.0,
        help="evaluation.temperature (default %(default)s)",
    )
    add("--model", type=Path, required=True, help="Hugging Face folder of the policy before training")
    add(
        "--context",
        type=whole(1),
        help="tokens, prompt and answer, to serve it with (default: what it can hold)",
    )
    add("--images", type=Path, required=True, help="folder of the images")
    add(
        "--manifests",
        type=Path,
        help="folder of manifests of prepared images, compared with what rollouts record",
    )
    add("--references", type=Path, help="what right code does with altered tests (default: run it as needed)")
    add("--agent", type=json.loads, required=True, help="JSON of the agent's limits (`agent` of config.yaml)")
    add(
        "--gradings",
        type=whole(1),
        default=2,
        help="test runs at a time, if the JSON does not say (default %(default)s)",
    )
    add("--workspace", default="bwrap", help="backends.workspace (default %(default)s)")
    add("--tests", default="image", help="backends.tests (default %(default)s)")
    add("--work", type=Path, required=True, help="folder of live runs: checkpoints, metrics, trajectories")
    add("--logs", type=Path, help="folder of the services' logs (default: logs/ in the run's folder)")
    add("--max-rollouts", type=whole(1), default=32, help="rollouts at once (default %(default)s)")
    add("--retries", type=whole(0), default=2, help="of a rollout without a verdict (default %(default)s)")
    add("--out", type=Path, required=True, help="manifest of the checkpoint, written last")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    # After the arguments: --help works in every environment.
    import torch
    import transformers

    from lightning_smith.miniature.policy.train import TrainSettings, train_segment

    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    settings = TrainSettings(
        name=args.recipe,
        recipe=parse_recipe(args.recipe, args.settings),
        step=args.step,
        tasks=args.tasks,
        validation=args.validation,
        validation_temperature=args.validation_temperature,
        model=args.model,
        context=args.context,
        images=args.images,
        manifests=args.manifests,
        references=args.references,
        workspace=args.workspace,
        tests=args.tests,
        agent=AgentSettings.from_dict({"gradings": args.gradings} | args.agent),
        work=args.work,
        logs=args.logs,
        max_rollouts=args.max_rollouts,
        retries=args.retries,
    )
    write_manifest(args.out, train_segment(settings))


if __name__ == "__main__":
    run_script(main)
