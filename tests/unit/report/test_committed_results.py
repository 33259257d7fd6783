"""The committed run of config/mini-long.yaml: its table is what its verdicts and manifests say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import yaml

from lightning_smith.core.files import read_json
from lightning_smith.evaluation.counts import read_evaluation

REPOSITORY = Path(__file__).parents[3]
RESULTS = REPOSITORY / "results/mini-long"
RECIPES = yaml.safe_load((REPOSITORY / "config/mini-long.yaml").read_text())["recipes"]
EVALUATED = [(name, recipe, step) for name, recipe in RECIPES.items() for step in recipe["evaluate"]]


def results_table():
    spec = importlib.util.spec_from_file_location(
        "results_table", REPOSITORY / "scripts/report/make_table.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_made_again_byte_for_byte(tmp_path):
    arguments = ["--title", "Results of the experiment `mini-long`"]
    arguments += ["--published", str(REPOSITORY / "assets/published/results.tsv")]
    for name, recipe, step in EVALUATED:
        folder = RESULTS / f"eval/{name}/step_{step}"
        arguments += ["--evaluation", name, recipe["policy"], str(step), str(folder)]
        if step:
            arguments += ["--manifest", name, str(step), str(RESULTS / f"train/{name}/step_{step}.json")]
    results_table().main([*arguments, "--markdown", f"{tmp_path}/main.md", "--csv", f"{tmp_path}/main.csv"])
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
