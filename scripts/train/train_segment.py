"""Train one recipe up to one of its checkpoints.

Run it again after an interruption: it goes on from the newest whole live checkpoint, and inside an
interrupted step from the rollouts that had finished. A step that is reached already only gets its manifest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import TrainStage
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned
from lightning_smith.core.provenance import code_version, write_manifest


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, TrainStage)
    add = parser.add_argument
    add("--step", type=whole(0), required=True, help="train up to this step, one of the recipe's checkpoints")
    add("--tasks", type=Path, required=True, help="training tasks, JSON lines with SWE-smith's columns")
    add("--validation", type=Path, help="tasks that a recipe with validate_every is scored on, likewise")
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

    stage: TrainStage = read_settings(args, TrainStage)
    exit_when_orphaned()
    code_version()  # now: the checkout may change while this runs
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    settings = TrainSettings(stage, args.step, args.tasks, args.validation, args.max_rollouts, args.retries)
    write_manifest(args.out, train_segment(settings))


if __name__ == "__main__":
    run_script(main)
