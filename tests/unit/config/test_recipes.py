"""Recipes from JSON: what is refused, and what the settings hash covers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import whole_settings

from lightning_smith.config.recipes import LengthPenalty, deciding, parse_recipe
from lightning_smith.core.errors import UserError

SETTINGS = {
    **whole_settings.RECIPE,
    "policy": "dense",
    "seed": 1,
    "checkpoints": [8, 14, 22],
    "evaluate": [0, 8, 14, 22],
    "tasks_per_step": 8,
    "rollouts_per_task": 8,
    "learning_rate": 1.0e-4,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "loss": "per_rollout_mean",
    "router_replay": False,
    "async_rollouts": 0,
    "save_every": 2,
}


def recipe(**changes: Any):
    return parse_recipe("dense", {**SETTINGS, **changes})


def test_settings_become_typed():
    parsed = recipe()
    assert parsed.checkpoints == (8, 14, 22)
    assert (parsed.horizon, parsed.rollouts_per_step, parsed.learning_rate) == (22, 64, 1e-4)
    parsed.require_step(14)
    with pytest.raises(UserError, match=r"step 15 is not one of .*\[8, 14, 22\]"):
        parsed.require_step(15)


def test_penalties_are_read_and_count_for_the_hash():
    parsed = recipe(turn_penalty={"start": 80, "end": 100, "most": 0.1})
    assert parsed.turn_penalty == LengthPenalty(80, 100, 0.1) and parsed.prompt_penalty is None
    assert recipe(turn_penalty=None) == recipe()
    assert deciding(parsed) != deciding(recipe())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rte": 1e-4}, "recipes.dense.learning_rte: there is no such key (write learning_rate)"),
        ({"learning_rate": "1e-4"}, "learning_rate: '1e-4' is not a number (write 1.0e-4"),
        ({"tasks_per_step": 8.0}, "tasks_per_step: 8.0 is not a whole number"),
        ({"seed": True}, "seed: True is not a whole number"),
        ({"router_replay": 1}, "router_replay: 1 is not true or false"),
        (
            {"loss": "token_mean"},
            "loss: 'token_mean' is none of 'per_rollout_mean', 'cispo_per_rollout_mean'",
        ),
        ({"checkpoints": [14, 8]}, "must be rising"),
        ({"checkpoints": [0, 8]}, "checkpoints.0: 0 must be at least 1"),
        ({"checkpoints": []}, "must be rising"),
        ({"rollouts_per_task": 1}, "rollouts_per_task: 1 must be at least 2"),
        ({"clip_low": 0}, "clip_low: 0 must be above 0"),
        ({"updates_per_step": 0}, "updates_per_step: 0 must be at least 1"),
        ({"updates_per_step": 2}, "updates_per_step=2 needs tasks_per_update"),
        ({"tasks_per_update": 0}, "tasks_per_update: 0 must be at least 1"),
        ({"tasks_per_update": 99}, "tasks_per_update=99 is more than a step has"),
        ({"validate_every": 0}, "validate_every: 0 must be at least 1"),
        ({"verl": 3}, "verl: 3 is no mapping"),
        ({"rollout_correction": "token"}, "rollout_correction: 'token' is no mapping of keys"),
        (
            {"rollout_correction": {"level": "token", "threshold": 2.0}},
            "rollout_correction.bypass: it is missing",
        ),
        (
            {"rollout_correction": {"level": "row", "threshold": 2.0, "bypass": False}},
            "rollout_correction.level: 'row' is none of 'token', 'sequence'",
        ),
        (
            {"rollout_correction": {"level": "token", "threshold": 0.5, "bypass": False}},
            "rollout_correction.threshold: 0.5 must be at least 1",
        ),
        ({"turn_penalty": 0.1}, "turn_penalty: 0.1 is no mapping of keys"),
        ({"turn_penalty": {"start": 80, "end": 100}}, "turn_penalty.most: it is missing"),
        ({"prompt_penalty": {"start": 80, "end": 80, "most": 0.1}}, "start=80 must be below end=80"),
        (
            {"prompt_penalty": {"start": 1, "end": 80, "most": 0.5}},
            "prompt_penalty.most: 0.5 must be below 0.5",
        ),
        (
            {"prompt_penalty": {"start": 1.5, "end": 80, "most": 0.1}},
            "prompt_penalty.start: 1.5 is not a whole number",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=re.escape(sentence)):
        recipe(**changes)


def test_a_missing_key_is_named():
    with pytest.raises(UserError, match=r"recipes\.moe\.seed: it is missing"):
        parse_recipe("moe", {key: value for key, value in SETTINGS.items() if key != "seed"})


def test_what_decides_a_step_and_what_does_not():
    base = deciding(recipe())
    for neutral in ({"save_every": 4}, {"checkpoints": [8, 30]}, {"evaluate": [0]}):
        assert deciding(recipe(**neutral)) == base
    for relevant in ({"seed": 2}, {"learning_rate": 2e-4}, {"clip_high": 0.3}, {"tasks_per_step": 4}):
        assert deciding(recipe(**relevant)) != base


def test_validation_is_due_at_every_nth_step_and_at_checkpoints():
    every_eighth = recipe(validate_every=8)
    assert [step for step in range(1, 23) if every_eighth.validates(step)] == [8, 14, 16, 22]
    assert [step for step in range(1, 23) if recipe(validate_every=22).validates(step)] == [8, 14, 22]
    assert not any(recipe().validates(step) for step in range(1, 23))


def test_a_step_has_as_many_updates_as_whole_mini_batches():
    """The published ones: 16 groups of 8 make a mini batch of 128 rows, two at most."""
    published = recipe(tasks_per_step=16, tasks_per_update=16, updates_per_step=2)
    assert [published.updates(rows) for rows in (1, 127, 128, 255, 256, 1000)] == [1, 1, 1, 1, 2, 2]
    assert recipe().updates(1000) == 1
