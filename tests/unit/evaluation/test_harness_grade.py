"""Grading a whole checkpoint: files, sums, disputes, controls. Needs swebench:

uv run --frozen --project envs/eval --with pytest pytest tests/unit/evaluation/test_harness_grade.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_harness_official import FAILED, FIX, PASSED, Scripted, ran, task

from lightning_smith.contracts.outcome import Ending, Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, sha256_file, write_json, write_jsonl
from lightning_smith.evaluation.counts import read_evaluation
from lightning_smith.evaluation.grade import GradeSettings, control, grade, planned_tasks, read_run
from lightning_smith.evaluation.harness import Answer, Execution, ExecutionError
from lightning_smith.evaluation.predictions import Prediction, write_predictions

pytest.importorskip("swebench", reason="needs envs/eval")
pytestmark = [pytest.mark.e2e, pytest.mark.swebench]

IDS = ["gold", "wrong", "empty", "lost", "forged"]
TASKS = [task(instance_id) for instance_id in IDS]
GOLD, WRONG = ran(PASSED, 0), ran(FAILED, 1)


def cross_check(row: Mapping[str, Any], patch: bytes, execution: Execution, resolved: bool) -> Answer:
    if row["instance_id"] == "forged":
        return Answer(Outcome.TAMPERED, tested=True)
    return Answer(Outcome.SOLVED if resolved else Outcome.UNSOLVED, tested=False)


def record(instance_id: str, sample: int, outcome: Outcome | None) -> dict[str, Any]:
    return RolloutRecord(
        instance_id=instance_id,
        sample=sample,
        outcome=outcome,
        reward=None,
        resolved=None,
        turns=1,
        prompt_tokens=1,
        completion_tokens=1,
        wall_s=1.0,
        model="m",
        model_revision="r",
        image_digest="",
        seed=1,
        ending=Ending.LIMIT if (instance_id, sample) == ("gold", 1) else Ending.SUBMITTED,
    ).to_dict()


def write_run(folder: Path, samples: int = 2) -> dict[str, Any]:
    for sample in range(samples):
        part = folder / f"sample_{sample}"
        patches = {"gold": FIX, "wrong": FIX, "empty": b"", "forged": FIX}
        write_predictions(
            part / "preds.jsonl", [Prediction(key, "m", patch) for key, patch in patches.items()]
        )
        outcomes = dict.fromkeys(IDS) | {"lost": Outcome.INFRA, "empty": Outcome.AGENT_LIMIT}
        write_jsonl(part / "rollouts.jsonl", (record(key, sample, value) for key, value in outcomes.items()))
    tasks_file = folder / "heldout.parquet"
    tasks_file.write_bytes(b"rows")
    run = {
        "recipe": "dense",
        "step": 8,
        "dataset": "miniature-heldout",
        "dataset_sha256": sha256_file(tasks_file),
        "samples": samples,
        "settings": {},
        "versions": {},
        "machine": "here",
        "instance_ids": IDS,
    }
    write_json(folder / "run.json", run)
    return run


def scan(row: Mapping[str, Any], patch: bytes) -> list[str]:
    assert patch == FIX
    return {"wrong": ["m.py:1 import gc", "m.py:2 import os"], "forged": ["m.py:1 builtin exec"]}.get(
        row["instance_id"], []
    )


def settings(tmp_path: Path, **executions: Any) -> GradeSettings:
    return GradeSettings(tmp_path / "work", Scripted(**executions), "bubblewrap", 60, cross_check, scan)


EXECUTIONS = {"gold": GOLD, "wrong": WRONG, "forged": GOLD}


def test_a_checkpoint(tmp_path: Path):
    folder = tmp_path / "eval"
    run = write_run(folder)
    summary = grade(settings(tmp_path, **EXECUTIONS), TASKS, run, folder)
    assert summary["counts"] == {"resolved": 4, "unresolved": 2, "empty": 2, "error": 0, "missing": 2}
    assert summary["outcomes"]["agent_limit"] == summary["outcomes"]["infra"] == 2
    assert [(item["instance_id"], item["sample"]) for item in summary["disagreements"]] == [
        ("forged", 0),
        ("forged", 1),
    ]
    assert summary["resolved_unsubmitted"] == 0.25, "gold of sample 1, of four that resolved"
    assert summary["harness"] == "swebench 5.0.2"
    assert summary["suspicious"] == 4, "two patches in each sample"
    assert "instance_ids" not in summary["rollouts"]
    for sample in (0, 1):
        report = read_json(folder / f"sample_{sample}/report.json")
        assert report["schema_version"] == 2
        assert report["resolved_ids"] == ["forged", "gold"]
        assert report["incomplete_ids"] == ["lost"]
    evaluation = read_evaluation(folder, "dense step 8")
    assert sorted(evaluation.run().resolved) == ["empty", "forged", "gold", "wrong"]
    said = {(v.instance_id, v.ours, v.tested) for v in evaluation.verdicts if v.ours}
    tampered, solved, unsolved = Outcome.TAMPERED, Outcome.SOLVED, Outcome.UNSOLVED
    assert said == {("forged", tampered, True), ("gold", solved, False), ("wrong", unsolved, False)}
    assert {(v.instance_id, v.hits) for v in evaluation.verdicts if v.hits} == {
        ("forged", ("m.py:1 builtin exec",)),
        ("wrong", ("m.py:1 import gc", "m.py:2 import os")),
    }


def test_hits_are_kept_whatever_becomes_of_a_patch(tmp_path: Path):
    """Also of patches that do not apply or run out of time, and where a later run finds them graded."""
    folder = tmp_path / "eval"
    run = write_run(folder, samples=1)
    late = Execution(b"", applied=True, timed_out=True, seconds=60)
    executions = EXECUTIONS | {"wrong": Execution(b"", False, False, 0.1), "forged": late}
    for _ in range(2):
        summary = grade(settings(tmp_path, **executions), TASKS, run, folder)
        assert (summary["counts"]["error"], summary["suspicious"]) == (2, 2)
    unscanned = replace(settings(tmp_path, **executions), scan=None, versions={"scan_version": None})
    assert grade(unscanned, TASKS, run, folder)["suspicious"] is None


def test_a_broken_machine_fails_the_stage_and_the_next_run_continues(tmp_path: Path):
    folder = tmp_path / "eval"
    run = write_run(folder, samples=1)
    broken = settings(tmp_path, **EXECUTIONS | {"gold": ExecutionError("no space left")})
    with pytest.raises(UserError, match=r"1 of 3 patches could not be graded .* no space left"):
        grade(broken, TASKS, run, folder)
    assert not (folder / "counts.json").exists()
    repaired = settings(tmp_path, **EXECUTIONS)
    grade(repaired, TASKS, run, folder)
    assert repaired.execute.calls == ["gold"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"executor": "Docker"}, "executor"),
        ({"timeout_s": 61}, "timeout_s"),
        ({"versions": {"grader": 8}}, "grader"),
    ],
)
def test_verdicts_under_other_settings_are_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], named: str
):
    folder = tmp_path / "eval"
    run = write_run(folder, samples=1)
    first = replace(settings(tmp_path, **EXECUTIONS), versions={"grader": 7})
    grade(first, TASKS, run, folder)
    other = replace(first, execute=Scripted(**EXECUTIONS), **change)
    grade(other, TASKS, run, folder)
    assert sorted(other.execute.calls) == ["forged", "gold", "wrong"]  # type: ignore[attr-defined]
    assert f"[grade dense-step-8-sample-0] {named} is" in capsys.readouterr().err
    grade(first, TASKS, run, folder)
    assert len(first.execute.calls) == 3, "the first run's verdicts count again"  # type: ignore[attr-defined]


def test_predictions_for_other_data_are_refused(tmp_path: Path):
    write_run(tmp_path)
    assert read_run(tmp_path, tmp_path / "heldout.parquet")["step"] == 8
    (tmp_path / "heldout.parquet").write_bytes(b"other rows")
    with pytest.raises(UserError, match="predict again"):
        read_run(tmp_path, tmp_path / "heldout.parquet")
    with pytest.raises(UserError, match="the data set lacks forged"):
        planned_tasks(TASKS[:4], IDS)


def test_controls(tmp_path: Path):
    out = tmp_path / "gold.json"
    chosen = TASKS[:2]
    summary = control("gold", settings(tmp_path, gold=GOLD, wrong=WRONG), chosen, "d", out)
    assert (summary["instances"], summary["resolved"], summary["failed"]) == (2, 1, ["wrong"])
    assert summary["suspicious"] == {"wrong": ["m.py:1 import gc", "m.py:2 import os"]}
    assert read_json(out) == summary
    execute = replace(settings(tmp_path, gold=WRONG, wrong=GOLD), scan=lambda row, patch: [])
    empty = control("empty", execute, chosen, "d", tmp_path / "empty.json")
    assert (empty["instances"], empty["resolved"], empty["failed"]) == (2, 1, ["wrong"])
    assert execute.execute.patches == {"gold": b"", "wrong": b""}  # type: ignore[attr-defined]
