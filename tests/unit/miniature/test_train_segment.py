"""A training segment without its services: what is decided before they start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import whole_settings
from whole_settings import agent_settings

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_policy

from lightning_smith.config.models import Policy
from lightning_smith.config.recipes import parse_recipe
from lightning_smith.config.stages import TrainStage
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import append_jsonl, read_jsonl, write_json
from lightning_smith.miniature.policy import train
from lightning_smith.miniature.policy.train import TrainSettings, train_segment
from lightning_smith.training.checkpoint import describe_files, write_checkpoint

pytestmark = pytest.mark.torch

RECIPE = {
    **whole_settings.RECIPE,
    "policy": "moe",
    "seed": 1,
    "checkpoints": [2, 4],
    "evaluate": [0, 4],
    "tasks_per_step": 2,
    "rollouts_per_task": 4,
    "learning_rate": 1e-4,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "loss": "per_rollout_mean",
    "router_replay": True,
    "async_rollouts": 0,
    "save_every": 2,
}
METRICS = [{"step": 1, "reward": 0.25, "rollouts": 8}, {"step": 2, "reward": 0.5, "rollouts": 8}]
AGENT = agent_settings()


@pytest.fixture
def settings(tmp_path: Path) -> TrainSettings:
    append_jsonl(tmp_path / "train.jsonl", [{"instance_id": f"task-{k}"} for k in range(5)])
    stage = TrainStage(
        name="moe",
        recipe=parse_recipe("moe", RECIPE),
        policy=policy(tiny_policy.write(tmp_path / "start", "moe")),
        validation_temperature=0.7,
        agent=AGENT,
        workspace="bwrap",
        tests="image",
        images=tmp_path / "images",
        work=tmp_path / "train",
        logs=tmp_path / "logs",
    )
    return TrainSettings(stage, 2, tmp_path / "train.jsonl")


def policy(model: Path) -> Policy:
    return Policy(kind="moe", model=str(model), revision=None, max_model_len=1024)


def told(settings: TrainSettings, **changes: Any) -> TrainSettings:
    """The same run of a stage that is told something else."""
    return replace(settings, stage=replace(settings.stage, **changes))


def whole_checkpoint(settings: TrainSettings) -> Path:
    """What a finished segment leaves."""
    segment = train._segment(settings, train._describe_inputs(settings))

    def fill(folder: Path) -> None:
        for name in ("model.safetensors", "optimizer.pt"):
            (folder / name).write_bytes(b"x")
        write_json(
            folder / "state.json", {"settings_hash": segment.settings_hash, "reward_history": [0.25, 0.5]}
        )

    append_jsonl(segment.metrics_file, METRICS)
    return write_checkpoint(segment.root, 2, fill)


def test_a_reached_step_only_gets_its_manifest(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "Stack", None)  # starting a service would fail
    checkpoint = whole_checkpoint(settings)
    manifest = train_segment(settings)
    assert manifest == train_segment(settings), "written twice, it is the same"
    assert (manifest["recipe"], manifest["step"], manifest["trained_examples"]) == ("moe", 2, 4)
    assert manifest["checkpoint"] == str(checkpoint) and manifest["files"] == describe_files(checkpoint)
    assert manifest["metrics"]["reward_history"] == [0.25, 0.5]
    assert manifest["metrics"]["steps"] == METRICS and manifest["metrics"]["last_step"] == METRICS[-1]
    assert manifest["inputs"]["rollout_dtype"] == "bfloat16", "a mixture of experts is rolled out in bf16"
    assert json.loads(json.dumps(manifest))["settings_hash"] in manifest["checkpoint"]


def test_validation_is_listed_by_step_and_its_tasks_are_given_to_the_agents(
    settings: TrainSettings, tmp_path: Path
):
    append_jsonl(tmp_path / "val.jsonl", [{"instance_id": f"held-{k}"} for k in range(3)])
    recipe = parse_recipe("moe", {**RECIPE, "validate_every": 1})
    settings = replace(told(settings, recipe=recipe), validation=tmp_path / "val.jsonl")
    segment = train._segment(settings, train._describe_inputs(settings))
    whole_checkpoint(settings)
    scores = {"reward": 0.25, "rollouts": 3}, {"reward": 0.75, "rollouts": 3}
    rows = [{**row, "validation": score} for row, score in zip(METRICS, scores, strict=True)]
    segment.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = train_segment(settings)["metrics"]
    assert metrics["steps"] == METRICS
    assert metrics["validation"] == [{"step": 1, **scores[0]}, {"step": 2, **scores[1]}]

    given = [row["instance_id"] for row in read_jsonl(train._all_tasks(settings, segment))]
    assert given == [f"task-{k}" for k in range(5)] + [f"held-{k}" for k in range(3)]
    unvalidated = told(settings, recipe=parse_recipe("moe", RECIPE))
    segment = train._segment(unvalidated, train._describe_inputs(unvalidated))
    assert train._all_tasks(unvalidated, segment) == settings.tasks


def test_other_tasks_model_or_agent_are_another_run(
    settings: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def folder(changed: TrainSettings) -> Path:
        return train._segment(changed, train._describe_inputs(changed)).root

    append_jsonl(tmp_path / "other.jsonl", [{"instance_id": f"task-{k}"} for k in range(4)])
    variants = [
        settings,
        replace(settings, tasks=tmp_path / "other.jsonl"),
        told(settings, policy=policy(tiny_policy.write(tmp_path / "other", "moe", seed=1))),
        told(settings, agent=replace(AGENT, max_turns=5)),
        told(settings, workspace="docker"),
        told(settings, tests="smith"),
        told(settings, recipe=parse_recipe("moe", {**RECIPE, "learning_rate": 2e-4})),
    ]
    capsys.readouterr()
    assert len({folder(variant) for variant in variants}) == len(variants)
    assert "recipe.learning_rate is 0.0002 instead of 0.0001" in capsys.readouterr().err
    assert folder(replace(settings, step=4, max_rollouts=4)) == folder(settings)
    assert capsys.readouterr().err == ""


def test_a_step_or_recipe_that_cannot_be_is_refused(settings: TrainSettings):
    with pytest.raises(UserError, match="step 3 is not one of"):
        train_segment(replace(settings, step=3))
    recipe = parse_recipe("moe", {**RECIPE, "async_rollouts": 24})
    with pytest.raises(UserError, match="trains synchronously"):
        train_segment(told(settings, recipe=recipe))
    correction = {"level": "token", "threshold": 2.0, "bypass": False}
    for changes, sentence in [
        ({"rollout_correction": correction}, "rollout_correction .*: set it to null"),
        ({"validate_every": 2}, "no task is held aside for validation"),
    ]:
        with pytest.raises(UserError, match=sentence):
            train_segment(told(settings, recipe=parse_recipe("moe", {**RECIPE, **changes})))
