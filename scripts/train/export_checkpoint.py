"""Write a checkpoint as a Hugging Face folder and prove that the folder is what was trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import read_json
from lightning_smith.core.provenance import write_manifest
from lightning_smith.miniature.policy.conversation import SYSTEM_PROMPT, problem_statement
from lightning_smith.training.checkpoint import describe_files
from lightning_smith.training.export import export_checkpoint

PROMPTS = [
    [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": problem_statement(entity, path, kind, first, first + 6)},
    ]
    for entity, path, kind, first in (
        ("clamp", "pkg/mathutils.py", "cmp", 40),
        ("Parser.feed", "src/lib/parser.py", "arith", 118),
        ("is_valid", "core/_check.py", "bool", 7),
        ("chunked", "tools/itertools.py", "const", 301),
    )
]
"""Openings that export and checkpoint must answer with the same tokens."""


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--manifest", type=Path, required=True, help="manifest of the checkpoint (train_segment wrote it)")
    add("--model", type=Path, required=True, help="Hugging Face folder of the policy before training")
    add(
        "--export",
        type=Path,
        required=True,
        help="folder to write; appears whole and verified, or not at all",
    )
    add("--out", type=Path, required=True, help="manifest of the export, written last")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    # After the arguments: --help works in every environment.
    import torch
    import transformers

    from lightning_smith.miniature.policy.train import versions

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    trained = read_json(args.manifest)
    checkpoint = Path(trained["checkpoint"])
    if describe_files(checkpoint) != trained["files"]:
        raise UserError(
            f"{checkpoint} does not hold the files that {args.manifest} lists: delete it and train again"
        )
    proof = export_checkpoint(checkpoint, args.model, args.export, PROMPTS)
    write_manifest(
        args.out,
        {
            "recipe": trained["recipe"],
            "step": trained["step"],
            "trained_examples": trained["trained_examples"],
            "checkpoint": trained["checkpoint"],
            "export": str(args.export),
            **proof,
            "versions": versions(),
        },
    )


if __name__ == "__main__":
    run_script(main)
