"""Settings of predictions that name no real file but the data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from whole_settings import agent_settings

from lightning_smith.config.models import Evaluation, Policy
from lightning_smith.config.stages import PredictStage
from lightning_smith.evaluation.predict import PredictSettings
from lightning_smith.gateway.launch import PolicyServer

EVALUATION = Evaluation(
    dataset="miniature-heldout",
    revision=None,
    instances=9,
    samples=2,
    temperature=1.0,
    seed=3,
    max_invalid_fraction=0.3,
    harness_timeout_s=60,
    retest_fraction=1.0,
)


def settings(
    tmp_path: Path,
    evaluation: dict[str, Any] | None = None,
    stage: dict[str, Any] | None = None,
    **changes: Any,
) -> PredictSettings:
    """Settings with other values in the section `evaluation`, of the stage, or of the run."""
    dataset = tmp_path / "heldout.parquet"
    dataset.write_bytes(b"rows")
    told = PredictStage(
        evaluation=replace(EVALUATION, **(evaluation or {})),
        recipe="dense",
        policy=Policy(kind="dense", model="model", revision=None, max_model_len=1024),
        policy_name="policy",
        exports=tmp_path / "export",
        dtype="float32",
        agent=agent_settings(),
        workspace="bwrap",
        images=tmp_path / "images",
        work=tmp_path / "work",
        logs=tmp_path / "logs",
    )
    run = PredictSettings(
        stage=replace(told, **(stage or {})),
        step=8,
        policy=PolicyServer(tmp_path / "model", "policy", revision="sha256:1"),
        dataset_file=dataset,
        out=tmp_path / "out",
    )
    return replace(run, **changes)
