"""A rollout counts only if it ran in the image that its manifest names."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.gateway.dispatch import RolloutRequest
from lightning_smith.gateway.logged_run import run_logged
from lightning_smith.gateway.rollout_log import RolloutLog
from lightning_smith.images.recorded import image_check

TRAIN = {"instance_id": "a__b.1.x", "image_name": "swebench/swesmith.x86_64.a_1776_b.1"}
HELDOUT = {"instance_id": "c__d-1", "image": "swebench/sweb.eval.x86_64.c_1776_d-1:latest"}
RECORD = RolloutRecord(
    instance_id="a__b.1.x", sample=0, outcome=Outcome.SOLVED, reward=1.0, resolved=None, turns=1, prompt_tokens=1,
    completion_tokens=1, wall_s=1.0, model="m", model_revision="r", image_digest="sha256:base", seed=1,
)  # fmt: skip


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    for key in ("swesmith.x86_64.a_1776_b.1", "sweb.eval.x86_64.c_1776_d-1"):
        write_json(
            tmp_path / f"{key}.json", {"base": {"id": "sha256:base"}, "image": {"id": "sha256:layered"}}
        )
    return tmp_path


@pytest.mark.parametrize("row", [TRAIN, HELDOUT], ids=["training", "held out"])
@pytest.mark.parametrize(
    "digest", ["sha256:base", "sha256:layered", ""], ids=["pulled", "layered", "none yet"]
)
def test_images_of_the_manifest_pass(manifests: Path, row: dict[str, str], digest: str) -> None:
    image_check([row], manifests)(replace(RECORD, instance_id=row["instance_id"], image_digest=digest))


def test_another_image_is_refused_by_name(manifests: Path) -> None:
    with pytest.raises(UserError) as error:
        image_check([TRAIN], manifests)(replace(RECORD, image_digest="sha256:other"))
    said = str(error.value)
    assert "a__b.1.x ran in sha256:other" in said
    assert "swesmith.x86_64.a_1776_b.1.json" in said and "sha256:base or sha256:layered" in said


def test_an_image_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a_1776_b\.1\.json does not exist"):
        image_check([TRAIN], tmp_path)(RECORD)


def test_images_that_are_made_here_have_no_manifests() -> None:
    image_check([TRAIN], None)(replace(RECORD, image_digest="sha256:other"))


def test_a_log_with_rollouts_of_another_image_is_refused_before_services_start(
    manifests: Path, tmp_path: Path
) -> None:
    log = RolloutLog(tmp_path / "log.jsonl")
    log.append(replace(RECORD, image_digest="sha256:other"))
    request = RolloutRequest(instance_id="a__b.1.x", sample=1, seed=1, is_train=True, grade=True, timeout_s=1)

    def start() -> nullcontext:
        raise AssertionError("services were started")

    with pytest.raises(UserError, match="ran in sha256:other"):
        run_logged("probe", [request], log, start, check_record=image_check([TRAIN], manifests))
