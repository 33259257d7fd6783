"""A segment of a small recipe over eight tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import whole_settings

from lightning_smith.config.recipes import parse_recipe
from lightning_smith.training.segments import Segment, choose_validation

SETTINGS = whole_settings.RECIPE
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
