"""Write the results table (Markdown and CSV) from verdicts, training manifests and the published rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import read_json, write_atomic
from lightning_smith.evaluation.counts import read_evaluation
from lightning_smith.report.published import read_published
from lightning_smith.report.results import Checkpoint, make_rows
from lightning_smith.report.table import render_csv, render_markdown


def main(argv: list[str] | None = None) -> None:
    """Read one evaluation folder a checkpoint and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--evaluation",
        nargs=4,
        action="append",
        required=True,
        metavar=("RECIPE", "POLICY", "STEP", "FOLDER"),
        help="an evaluated checkpoint: its recipe, the policy it trains, its step (0: before training) and "
        "the folder with counts.json and verdicts.jsonl; may be given many times",
    )
    parser.add_argument(
        "--manifest",
        nargs=3,
        action="append",
        default=[],
        metavar=("RECIPE", "STEP", "FILE"),
        help="training manifest of a checkpoint; one for every evaluated step but 0",
    )
    parser.add_argument("--control", action="append", default=[], help="summary of a gold or empty control")
    parser.add_argument("--published", help="table of published results (assets/published/results.tsv)")
    parser.add_argument("--title", default="Results", help="heading of the Markdown table")
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of the bootstrap intervals")
    parser.add_argument("--markdown", required=True, help="Markdown file to write")
    parser.add_argument("--csv", required=True, help="CSV file to write")
    args = parser.parse_args(argv)

    manifests = {(recipe, int(step)): read_json(path) for recipe, step, path in args.manifest}
    checkpoints = []
    for recipe, policy, text, folder in args.evaluation:
        step = int(text)
        evaluation = read_evaluation(folder, f"{recipe} step {step}")
        examples = trained_examples(manifests, recipe, step)
        checkpoints.append(Checkpoint(recipe, policy, step, examples, evaluation))
    rows = make_rows(checkpoints, seed=args.seed)
    published = read_published(args.published) if args.published else []
    controls = {summary["control"]: summary for summary in map(read_json, args.control)}
    text = render_markdown(
        rows, title=args.title, published=published, controls=controls, manifests=manifests
    )
    write_atomic(Path(args.csv), render_csv(rows, published))
    write_atomic(Path(args.markdown), text)


def trained_examples(manifests: dict[tuple[str, int], dict], recipe: str, step: int) -> int:
    """Examples that a checkpoint was trained on, as its manifest says; 0 before training."""
    if step == 0:
        return 0
    if (recipe, step) not in manifests:
        raise UserError(
            f"{recipe} step {step} was evaluated but has no training manifest: give it with --manifest"
        )
    return int(manifests[recipe, step]["trained_examples"])


if __name__ == "__main__":
    run_script(main)
