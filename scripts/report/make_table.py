"""Write the results table (Markdown and CSV) from verdicts, training manifests and the published rows."""

from __future__ import annotations

from pathlib import Path

from lightning_smith.config.settings_file import read_settings, settings_parser
from lightning_smith.config.stages import TableStage
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import read_json, write_atomic
from lightning_smith.evaluation.counts import read_evaluation
from lightning_smith.report.published import read_published
from lightning_smith.report.results import Checkpoint, make_rows
from lightning_smith.report.table import render_csv, render_markdown


def main(argv: list[str] | None = None) -> None:
    """Read one evaluation folder a checkpoint and write both tables."""
    parser = settings_parser(__doc__, TableStage)
    parser.add_argument("--published", help="table of published results (assets/published/results.tsv)")
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of the bootstrap intervals")
    parser.add_argument("--markdown", required=True, help="Markdown file to write")
    parser.add_argument("--csv", required=True, help="CSV file to write")
    args = parser.parse_args(argv)
    stage: TableStage = read_settings(args, TableStage)
    manifests = {
        (each.recipe, each.step): read_json(each.manifest) for each in stage.checkpoints if each.manifest
    }
    checkpoints = [
        Checkpoint(
            each.recipe,
            each.policy,
            each.step,
            trained_examples(manifests, each.recipe, each.step),
            read_evaluation(each.folder, f"{each.recipe} step {each.step}"),
        )
        for each in stage.checkpoints
    ]
    rows = make_rows(checkpoints, seed=args.seed)
    published = read_published(args.published) if args.published else []
    controls = {summary["control"]: summary for summary in map(read_json, stage.controls)}
    text = render_markdown(
        rows, title=stage.title, published=published, controls=controls, manifests=manifests
    )
    write_atomic(Path(args.csv), render_csv(rows, published))
    write_atomic(Path(args.markdown), text)


def trained_examples(manifests: dict[tuple[str, int], dict], recipe: str, step: int) -> int:
    """Examples that a checkpoint was trained on, as its manifest says; 0 before training."""
    if step == 0:
        return 0
    if (recipe, step) not in manifests:
        raise UserError(
            f"{recipe} step {step} was evaluated but has no training manifest: name it in the settings"
        )
    return int(manifests[recipe, step]["trained_examples"])


if __name__ == "__main__":
    run_script(main)
