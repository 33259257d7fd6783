"""swebench's own functions read what our runs leave. Run in its environment:

uv run --frozen --project envs/eval --with pytest pytest tests/unit/evaluation/test_harness_official.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.counts import count_categories
from lightning_smith.evaluation.harness import (
    NOT_RUN,
    PATCH_FAILED,
    TIMED_OUT,
    Answer,
    Execution,
    ExecutionError,
    OfficialRun,
    harness_name,
    make_verdicts,
    open_run,
)
from lightning_smith.evaluation.predictions import Prediction

pytest.importorskip("swebench", reason="needs envs/eval")
pytestmark = [pytest.mark.e2e, pytest.mark.swebench]

FIX = b"--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
PASSED = "PASSED t.py::f\nPASSED t.py::p\n"
FAILED = "FAILED t.py::f - assert 1 == 2\nPASSED t.py::p\n"


def task(instance_id: str) -> dict[str, Any]:
    script = (
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\n: '>>>>> Start Test Output'\npytest -rA t.py\n"
        ": '>>>>> End Test Output'\n"
    )
    return {
        "instance_id": instance_id,
        "repo": "acme/widget",
        "version": "1",
        "image": "acme/widget",
        "base_commit": "b",
        "patch": FIX.decode(),
        "FAIL_TO_PASS": json.dumps(["t.py::f"]),
        "PASS_TO_PASS": json.dumps(["t.py::p"]),
        "eval_script": script,
        "log_parser": "parse_log_pytest_v2",
        "eval_type": "pass_and_fail",
    }


def log(body: str, exit_code: int) -> bytes:
    """What bash -x prints for the script above."""
    return (
        f"+ : '>>>>> Start Test Output'\n+ pytest -rA t.py\n{body}+ SWEBENCH_TEST_EXIT_CODE={exit_code}\n"
        f"+ : '>>>>> End Test Output'\n+ echo '>>>>> Test Exit Code: {exit_code}'\n"
        f">>>>> Test Exit Code: {exit_code}\n"
    ).encode()


class Scripted:
    """Executes nothing: gives what is written down for an instance, and counts how often it was asked."""

    def __init__(self, **executions: Execution | Exception) -> None:
        self.executions = executions
        self.calls: list[str] = []
        self.patches: dict[str, bytes] = {}

    def __call__(self, row: Mapping[str, Any], script: str, patch: bytes) -> Execution:
        instance_id = row["instance_id"]
        self.calls.append(instance_id)
        self.patches[instance_id] = patch
        assert 'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"' in script.replace("{", "").replace(
            "}", ""
        )
        found = self.executions[instance_id]
        if isinstance(found, Exception):
            raise found
        return found


def ran(body: str, exit_code: int) -> Execution:
    return Execution(log(body, exit_code), applied=True, timed_out=False, seconds=0.1)


GOLD, WRONG = ran(PASSED, 0), ran(FAILED, 1)


def start(folder: Path, execute: Scripted, patches: Mapping[str, bytes], **more: Any) -> OfficialRun:
    ids = sorted(execute.executions)
    tasks = [task(instance_id) for instance_id in [*ids, "nobody"]]
    predictions = {key: Prediction(key, "org/model", patch) for key, patch in patches.items()}
    name = open_run(folder, "test", tasks, predictions, timeout_s=60)
    return OfficialRun(folder, name, tasks, predictions, execute=execute, timeout_s=60, **more)


def test_categories_of_the_official_report(tmp_path: Path):
    execute = Scripted(
        gold=GOLD,
        wrong=WRONG,
        empty=GOLD,
        corrupt=Execution(b"error: patch failed: m.py:1", applied=False, timed_out=False, seconds=0.1),
        slow=Execution(b"+ pytest -rA t.py\n", applied=True, timed_out=True, seconds=60),
        broken=ExecutionError("bwrap: no space"),
    )
    patches = dict.fromkeys(execute.executions, FIX) | {"empty": b""}
    run = start(tmp_path, execute, patches)
    graded = run.grade(workers=2)
    report = run.report()
    verdicts = {row.instance_id: row for row in make_verdicts(report, graded, {}, 0)}
    assert report["schema_version"] == 2
    assert {key: row.category for key, row in verdicts.items()} == {
        "gold": "resolved",
        "wrong": "unresolved",
        "empty": "empty",
        "corrupt": "error",
        "slow": "error",
        "broken": "error",
        "nobody": "missing",
    }
    assert verdicts["corrupt"].reason == PATCH_FAILED
    assert verdicts["slow"].reason == TIMED_OUT
    assert verdicts["broken"].reason == f"{NOT_RUN}: bwrap: no space"
    assert [key for key, row in verdicts.items() if not row.graded] == ["broken", "nobody"]
    assert sum(count_categories(list(verdicts.values()), instances=7, samples=1).values()) == 7
    assert execute.calls.count("broken") == 3  # tried again twice
    assert "empty" not in execute.calls


def test_a_second_run_grades_only_what_the_machine_failed(tmp_path: Path):
    broken = Scripted(gold=ExecutionError("no answer"), wrong=WRONG, empty=GOLD)
    patches = {"gold": FIX, "wrong": FIX, "empty": b""}
    first = start(tmp_path, broken, patches)
    first.grade(workers=1)
    assert first.report()["error_ids"] == ["gold"]
    repaired = Scripted(gold=GOLD, wrong=WRONG, empty=GOLD)
    second = start(tmp_path, repaired, patches)
    second.grade(workers=1)
    assert repaired.calls == ["gold"]
    assert second.report()["resolved_ids"] == ["gold"]
    assert second.report()["unresolved_ids"] == ["wrong"]


def test_a_changed_patch_is_graded_again(tmp_path: Path):
    start(tmp_path, Scripted(a=GOLD), {"a": FIX}).grade(workers=1)
    execute = Scripted(a=WRONG)
    run = start(tmp_path, execute, {"a": FIX + b" "})
    assert not run.grade(workers=1)["a"].resolved
    assert execute.calls == ["a"]


def test_printed_passes_do_not_beat_the_exit_code(tmp_path: Path):
    run = start(tmp_path, Scripted(a=ran(PASSED, 1)), {"a": FIX})
    assert not run.grade(workers=1)["a"].resolved
    assert run.report()["unresolved_ids"] == ["a"]


def test_a_log_without_results_does_not_resolve(tmp_path: Path):
    run = start(tmp_path, Scripted(a=ran("", 0), b=ran("ImportError\n", 2)), {"a": FIX, "b": FIX})
    assert not any(result.resolved for result in run.grade(workers=1).values())


def test_bytes_of_the_patch_and_of_the_log(tmp_path: Path):
    """A patch that is not UTF-8 reaches the sandbox as it is; a log that is not is read as the official
    runner does."""
    patch = b"-x = '\xe9'\n \n \n"
    noisy = Execution(log(PASSED, 0).replace(b"+ pytest", b"\xff\n+ pytest"), True, False, 0.1)
    execute = Scripted(a=noisy)
    run = start(tmp_path, execute, {"a": patch})
    assert run.grade(workers=1)["a"].resolved
    assert execute.patches["a"] == patch
    (saved,) = tmp_path.rglob("patch.diff")
    assert saved.read_bytes() == patch
    assert saved.parent.parent.name == "org__model"


def test_the_empty_control_runs_the_tests(tmp_path: Path):
    execute = Scripted(a=WRONG)
    run = start(tmp_path, execute, {"a": b""}, grade_empty=True)
    assert not run.grade(workers=1)["a"].resolved
    assert execute.calls == ["a"]


def test_our_verdict_survives_a_second_run(tmp_path: Path):
    asked = []

    def cross_check(row: Mapping[str, Any], patch: bytes, execution: Execution, resolved: bool) -> Answer:
        asked.append((row["instance_id"], patch, resolved))
        return Answer(Outcome.TAMPERED, tested=resolved)

    patches = {"a": FIX, "b": FIX}
    first = start(tmp_path, Scripted(a=GOLD, b=WRONG), patches, cross_check=cross_check)
    first.grade(workers=1)
    assert asked == [("a", FIX, True), ("b", FIX, False)]
    graded = start(tmp_path, Scripted(a=GOLD, b=WRONG), patches).grade(workers=1)
    assert graded["a"].ours == Answer(Outcome.TAMPERED, tested=True) and graded["a"].disputed
    assert graded["b"].ours == Answer(Outcome.TAMPERED, tested=False) and not graded["b"].disputed


@pytest.mark.parametrize(("applied", "timed_out"), [(False, False), (True, True)])
def test_nobody_is_asked_about_tests_that_did_not_end(tmp_path: Path, applied: bool, timed_out: bool):
    """Both graders say the same of these, whatever they are: an agreement would mean nothing."""
    execution = Execution(b"error", applied=applied, timed_out=timed_out, seconds=0.1)
    cross_check: Any = None.__getattribute__  # called, it would fail
    run = start(tmp_path, Scripted(a=execution), {"a": FIX}, cross_check=cross_check)
    assert run.grade(workers=1)["a"].ours is None


def test_no_predictions_at_all(tmp_path: Path):
    with pytest.raises(UserError, match="there is no prediction to grade"):
        start(tmp_path, Scripted(a=GOLD), {})


def test_harness_name():
    assert harness_name() == "swebench 5.0.2"
