"""A segment of a small recipe over eight tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_smith.config.recipes import parse_recipe
from lightning_smith.training.segments import Segment, choose_validation

SETTINGS = {
    "policy": "dense",
    "seed": 1,
    "checkpoints": [4, 7],
    "evaluate": [0, 4, 7],
    "tasks_per_step": 3,
    "rollouts_per_task": 4,
    "learning_rate": 1e-4,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "loss": "per_rollout_mean",
    "router_replay": False,
    "async_rollouts": 0,
    "save_every": 2,
}
TASKS = tuple(f"task-{number}" for number in range(8))


def segment(
    root: Path, validation: tuple[str, ...] = (), temperature: float = 0.7, **changes: Any
) -> Segment:
    recipe = parse_recipe("dense", {**SETTINGS, **changes})
    return Segment(
        "dense",
        recipe,
        "abc123",
        TASKS,
        root,
        validation_tasks=choose_validation(validation, recipe, "dense"),
        validation_temperature=temperature,
    )
