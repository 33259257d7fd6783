"""Settings of predictions that name no real file but the data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_smith.evaluation.predict import PredictSettings
from lightning_smith.gateway.launch import PolicyServer

AGENT = {
    "max_turns": 4,
    "max_tokens": 64,
    "observation_chars": 2000,
    "command_timeout_s": 10,
    "rollout_timeout_s": 120,
    "max_format_errors": 1,
    "grading_timeout_s": 15,
    "system_template": "Fix the bug.",
    "instance_template": "{problem_statement}",
}


def settings(tmp_path: Path, **changes: Any) -> PredictSettings:
    dataset = tmp_path / "heldout.parquet"
    dataset.write_bytes(b"rows")
    base = PredictSettings(
        dataset="miniature-heldout",
        dataset_file=dataset,
        images=tmp_path / "images",
        work=tmp_path / "work",
        out=tmp_path / "out",
        policy=PolicyServer(tmp_path / "model", "policy", revision="sha256:1"),
        recipe="dense",
        step=8,
        samples=2,
        seed=3,
        temperature=1.0,
        context=1024,
        agent=AGENT,
        max_invalid_fraction=0.3,
    )
    return replace(base, **changes)
