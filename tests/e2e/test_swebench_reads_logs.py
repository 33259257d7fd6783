"""swebench's own programs read the logs that our grading leaves, and count what it counted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tiny_image import REPOSITORY

from lightning_smith.images.daemon import Daemon

EVAL = REPOSITORY / "envs/eval/.venv/bin"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not EVAL.exists(), reason="needs swebench: uv sync --project envs/eval"),
]

GRADE = """
import json, sys
from lightning_smith.evaluation.harness import Execution, OfficialRun
from lightning_smith.evaluation.predictions import Prediction

FIX = b"--- a/m.py\\n+++ b/m.py\\n@@ -1 +1 @@\\n-x = 1\\n+x = 2\\n"
OTHER = FIX.replace(b"2", b"\\xff") + b" \\n"
SCRIPT = "#!/bin/bash\\ncd /testbed\\n: '>>>>> Start Test Output'\\npytest -rA t.py\\n: '>>>>> End Test Output'\\n"

def task(name):
    return {
        "instance_id": name, "repo": "acme/widget", "version": "1", "image": "acme/widget", "base_commit": "b",
        "patch": FIX.decode(), "test_patch": "", "problem_statement": "lines \\u2028 end", "eval_script": SCRIPT,
        "FAIL_TO_PASS": json.dumps(["t.py::f"]), "PASS_TO_PASS": json.dumps(["t.py::p"]),
        "log_parser": "parse_log_pytest_v2", "eval_type": "pass_and_fail",
    }

def ran(first, code):
    text = (
        f"+ : '>>>>> Start Test Output'\\n{first} t.py::f\\nPASSED t.py::p\\n+ SWEBENCH_TEST_EXIT_CODE={code}\\n"
        f"+ : '>>>>> End Test Output'\\n>>>>> Test Exit Code: {code}\\n"
    )
    return Execution(text.encode(), applied=True, timed_out=False, seconds=0.1)

executions = {
    "right": ran("PASSED", 0),
    "wrong": ran("FAILED", 1),
    "printed": ran("PASSED", 1),
    "corrupt": Execution(b"error: patch failed", applied=False, timed_out=False, seconds=0.1),
    "slow": Execution(b"+ pytest", applied=True, timed_out=True, seconds=60),
}
model, run_id = sys.argv[1:]
patches = {"gold": dict.fromkeys(executions, FIX)}.get(model, {**dict.fromkeys(executions, OTHER), "empty": b""})
run = OfficialRun(
    "grade", run_id, [task(name) for name in [*executions, "empty", "nobody"]],
    {name: Prediction(name, model, patch) for name, patch in patches.items()},
    execute=lambda row, script, patch: executions[row["instance_id"]], timeout_s=60,
)
run.grade(workers=2)
print(json.dumps(run.report()))
"""

COUNTED = (
    "resolved_ids",
    "unresolved_ids",
    "empty_patch_ids",
    "error_ids",
    "incomplete_ids",
    "total_instances",
)


def program(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [str(EVAL / command[0]), *command[1:]], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def grade(folder: Path, model: str, run_id: str) -> dict[str, Any]:
    """The summary of our run, whose verdicts are then spoiled so that nobody can read them again."""
    report = json.loads(program(folder, "python", "-c", GRADE, model, run_id))
    reports = list(folder.rglob("report.json"))
    assert len(reports) == 3
    for path in reports:
        path.write_text("{}")
    return report


def counted(report: dict[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in COUNTED}


def test_predictions_are_judged_again_from_the_logs(tmp_path: Path, daemon: Daemon) -> None:
    ours = grade(tmp_path, "org/model", "r1")
    assert ours["resolved_ids"] == ["right"] and ours["error_ids"] == ["corrupt", "slow"]
    assert ours["unresolved_ids"] == ["printed", "wrong"]
    run = "logs/run_evaluation/r1"
    options = ["--rewrite_reports", "true", "--run_id", "r1", "--report_dir", "again"]
    files = ["--dataset_name", f"{run}/tasks.jsonl", "--predictions_path", f"{run}/preds.jsonl"]
    program(tmp_path / "grade", "python", "-m", "swebench.harness.run_evaluation", *options, *files)
    theirs = json.loads((tmp_path / "grade/again/org__model.r1.json").read_text())
    # Its own run leaves no report where the tests ran out of time; judging the log again makes one.
    assert theirs["error_ids"] == ["corrupt"] and theirs["unresolved_ids"] == ["printed", "slow", "wrong"]
    ours |= {"error_ids": ["corrupt"], "unresolved_ids": ["printed", "slow", "wrong"]}
    assert counted(theirs) == counted(ours)
    program(tmp_path / "grade", "swebench", "report", "r1")
    as_gold = json.loads((tmp_path / "grade/gold.r1.json").read_text())
    assert as_gold["resolved_ids"] == [] and len(as_gold["error_ids"]) == as_gold["total_instances"] == 7


def test_swebench_report_reads_the_control_with_gold_patches(tmp_path: Path, daemon: Daemon) -> None:
    """It is told the run's name alone: run.json names the tasks."""
    ours = grade(tmp_path, "gold", "control-gold")
    program(tmp_path / "grade", "swebench", "report", "control-gold")
    theirs = json.loads((tmp_path / "grade/gold.control-gold.json").read_text())
    assert theirs["resolved_ids"] == ours["resolved_ids"] == ["right"]
    assert theirs["total_instances"] == ours["total_instances"] == 7
