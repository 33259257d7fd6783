"""The committed run of config/mini-long.yaml: its table is what its verdicts and manifests say."""

from __future__ import annotations

from pathlib import Path

import yaml

from lightning_smith.config.settings_file import write_settings
from lightning_smith.config.stages import EvaluatedCheckpoint, TableStage
from lightning_smith.core.files import read_json
from lightning_smith.evaluation.counts import read_evaluation
from scripts.report import make_table

REPOSITORY = Path(__file__).parents[3]
RESULTS = REPOSITORY / "results/mini-long"
RECIPES = yaml.safe_load((REPOSITORY / "config/mini-long.yaml").read_text())["recipes"]
EVALUATED = [(name, recipe, step) for name, recipe in RECIPES.items() for step in recipe["evaluate"]]


def test_the_table_is_made_again_byte_for_byte(tmp_path):
    checkpoints = tuple(
        EvaluatedCheckpoint(
            recipe=name,
            policy=recipe["policy"],
            step=step,
            folder=RESULTS / f"eval/{name}/step_{step}",
            manifest=RESULTS / f"train/{name}/step_{step}.json" if step else None,
        )
        for name, recipe, step in EVALUATED
    )
    title = "Results of the experiment `mini-long`"
    told = TableStage(title=title, checkpoints=checkpoints, controls=())
    arguments = ["--settings", write_settings(tmp_path, told)]
    arguments += ["--published", str(REPOSITORY / "assets/published/results.tsv")]
    make_table.main([*arguments, "--markdown", f"{tmp_path}/main.md", "--csv", f"{tmp_path}/main.csv"])
    for name in ("main.md", "main.csv"):
        assert (tmp_path / name).read_text() == (RESULTS / "tables" / name).read_text()


def test_every_checkpoint_says_what_it_is():
    for name, recipe in RECIPES.items():
        for step in recipe["checkpoints"]:
            manifest = read_json(RESULTS / f"train/{name}/step_{step}.json")
            assert manifest["step"] == step
            assert len(manifest["metrics"]["steps"]) == step
            assert manifest["trained_examples"] == step * recipe["tasks_per_step"]


def test_counts_sum_to_what_was_evaluated():
    for name, _, step in EVALUATED:
        evaluation = read_evaluation(str(RESULTS / f"eval/{name}/step_{step}"), f"{name} step {step}")
        assert sum(evaluation.summary["counts"].values()) == 200 * 2
