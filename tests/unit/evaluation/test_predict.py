"""From rollout records to predictions: submitted patches exact, others empty, failed services absent."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from predict_settings import settings
from whole_settings import agent_settings

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl
from lightning_smith.evaluation import predict as module
from lightning_smith.evaluation.predict import (
    Patches,
    agent_task,
    make_predictions,
    make_requests,
    predict,
)
from lightning_smith.evaluation.predictions import read_predictions
from lightning_smith.gateway.dispatch import Finished, RolloutRequest
from lightning_smith.gateway.launch import PolicyServer
from lightning_smith.release.evaluation_set import TASK_COLUMNS

BLANK_END = b"--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@\n-x = 1\n+x = 2\n \n \n"


def task(instance_id: str) -> dict[str, str]:
    return dict.fromkeys(TASK_COLUMNS, "") | {"instance_id": instance_id, "patch": "gold", "image": "acme/i"}


def finished(request: RolloutRequest, outcome: Outcome | None, patch: bytes | None = None) -> Finished:
    record = RolloutRecord(
        instance_id=request.instance_id,
        sample=request.sample,
        outcome=outcome,
        reward=None,
        resolved=None,
        turns=3,
        prompt_tokens=1,
        completion_tokens=1,
        wall_s=1.0,
        model="policy",
        model_revision="sha256:1",
        image_digest="sha256:i",
        seed=request.seed,
        patch_sha256=hashlib.sha256(patch).hexdigest() if patch else None,
    )
    return Finished(request, record, [], patch)


class Services:
    """Stands in for `run_logged`'s dispatch: ends rollouts as written down and counts what was asked for."""

    def __init__(self, outcomes: dict[str, tuple[Outcome | None, bytes | None]]) -> None:
        self.outcomes = outcomes
        self.asked: list[tuple[str, int]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from lightning_smith.gateway import logged_run as stage

        monkeypatch.setattr(stage, "dispatch", self.dispatch)
        monkeypatch.setattr(module, "_stack", lambda *_: self)

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    gateway, agent = None, ""
    policy = PolicyServer(Path(), "policy", revision="sha256:1")

    def check(self) -> None:
        return None

    def dispatch(self, gateway: object, requests: list[RolloutRequest], **_: Any):
        for request in requests:
            self.asked.append((request.instance_id, request.sample))
            yield finished(request, *self.outcomes[request.instance_id])


OUTCOMES = {
    "fixed": (None, BLANK_END),
    "unchanged": (None, b""),
    "limit": (Outcome.AGENT_LIMIT, b""),
    "limit that counts": (Outcome.AGENT_LIMIT, b"half a patch"),
    "infra": (Outcome.INFRA, None),
}


def test_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    services = Services(OUTCOMES)
    services.install(monkeypatch)
    chosen = settings(tmp_path)
    predict(chosen, [task(name) for name in OUTCOMES])
    for sample in (0, 1):
        predictions = read_predictions(chosen.out / f"sample_{sample}/preds.jsonl", OUTCOMES)
        assert {key: row.patch for key, row in predictions.items()} == {
            "fixed": BLANK_END,
            "unchanged": b"",
            "limit": b"",
            "limit that counts": b"half a patch",
        }
        rows = list(read_jsonl(chosen.out / f"sample_{sample}/rollouts.jsonl"))
        assert {row["instance_id"]: row["outcome"] for row in rows}["infra"] == "infra"
    run = read_json(chosen.out / "run.json")
    assert run["instance_ids"] == list(OUTCOMES)
    assert (run["samples"], run["settings"]["max_turns"], run["settings"]["context"]) == (2, 4, 1024)
    assert run["versions"]["agentlightning"] == "1.0.2"


def test_a_second_run_repeats_only_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Services(OUTCOMES).install(monkeypatch)
    chosen = settings(tmp_path)
    predict(chosen, [task(name) for name in OUTCOMES])
    again = Services(OUTCOMES | {"infra": (None, BLANK_END)})
    again.install(monkeypatch)
    predict(chosen, [task(name) for name in OUTCOMES])
    assert again.asked == [("infra", 0), ("infra", 1)]
    predictions = read_predictions(chosen.out / "sample_0/preds.jsonl", OUTCOMES)
    assert predictions["infra"].patch == predictions["fixed"].patch == BLANK_END


def test_rollouts_of_other_settings_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Services(OUTCOMES).install(monkeypatch)
    predict(settings(tmp_path), [task("fixed")])
    changes = (
        {"evaluation": {"temperature": 0.7}},
        {"policy": PolicyServer(tmp_path, "policy", revision="sha256:2")},
        {"policy": PolicyServer(tmp_path, "policy", revision="sha256:1", dtype="bfloat16")},
        {"policy": PolicyServer(tmp_path, "policy", revision="sha256:1", max_model_len=512)},
        {"stage": {"agent": agent_settings(max_turns=5)}},
        {"stage": {"agent": agent_settings(instance_template="Please: {problem_statement}")}},
        {"stage": {"agent": agent_settings(grade_unsubmitted=True)}},
        {"stage": {"workspace": "docker"}},
        {"evaluation": {"seed": 4}},
    )
    for change in changes:
        again = Services(OUTCOMES)
        again.install(monkeypatch)
        predict(settings(tmp_path, **change), [task("fixed")])
        assert again.asked == [("fixed", 0), ("fixed", 1)], change
    for same in (
        {},
        {"max_rollouts": 4, "retries": 0},
        {"stage": {"agent": agent_settings(grading_timeout_s=16)}},
        {"stage": {"agent": agent_settings(gradings=5)}},
    ):
        again = Services(OUTCOMES)
        again.install(monkeypatch)
        predict(settings(tmp_path, **same), [task("fixed")])
        assert again.asked == [], same


def test_too_many_failures_stop_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Services(OUTCOMES).install(monkeypatch)
    chosen = settings(tmp_path, {"max_invalid_fraction": 0.02})
    with pytest.raises(UserError, match="2 of 10 rollouts"):
        predict(chosen, [task(name) for name in OUTCOMES])
    assert not (chosen.out / "run.json").exists()


def test_a_damaged_patch_is_found_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Services(OUTCOMES).install(monkeypatch)
    chosen = settings(tmp_path)
    predict(chosen, [task("fixed")])
    (path,) = chosen.work.rglob("fixed.0.diff")
    path.write_bytes(BLANK_END.rstrip())
    again = Services(OUTCOMES)
    again.install(monkeypatch)
    with pytest.raises(UserError, match="is not the patch that the rollout reported"):
        predict(chosen, [task("fixed"), task("limit")])
    assert again.asked == []


def test_a_submission_without_a_patch_is_refused(tmp_path: Path):
    request = RolloutRequest("a", 0, 1)
    with pytest.raises(UserError, match="has a patch and did not report it"):
        Patches(tmp_path).keep(finished(request, None, None))


def test_requests_are_ungraded_validation_rollouts_with_seeds_of_their_own(tmp_path: Path):
    requests = make_requests(settings(tmp_path), ["a", "b"])
    assert len({request.seed for request in requests}) == 4
    assert not any(request.is_train or request.grade for request in requests)
    assert {request.timeout_s for request in requests} == {120 + 16 * 4 * 15 + 60}, (
        "the tests may wait for processor time"
    )


def test_the_agent_is_not_told_solution_and_tests():
    assert "gold" not in json.dumps(agent_task(task("a")))


def test_names_of_predictions(tmp_path: Path):
    done = finished(RolloutRequest("a", 0, 1), Outcome.AGENT_LIMIT)
    (prediction,) = make_predictions(settings(tmp_path), [done.record], Patches(tmp_path))
    assert (prediction.model, prediction.patch) == ("policy-dense-step-8", b"")
