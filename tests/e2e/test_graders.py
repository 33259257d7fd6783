"""Gradings in every kind of place: what solves, what forges in vain, and what is no verdict."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_image
from kinds import KINDS, Kind
from processes import processes

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.statuses import read_statuses
from lightning_smith.grading.store import GradeStore, TestRun
from lightning_smith.grading.tester import GraderError
from lightning_smith.grading.verdict import decide
from lightning_smith.repositories.local import LocalImage
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.scratch import Scratch

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]


LOCAL = pytest.mark.parametrize("kind", KINDS[:2], indirect=True)
"""For what a pod shares with Docker, where it takes longer: its grader is started again for each tree."""


@pytest.fixture(scope="module")
def task() -> RolloutTask:
    return RolloutTask.from_row(tiny_image.row())


PATCHES: dict[tuple[str, str], bytes] = {}


def patch_of(kind: Kind, command: str) -> bytes:
    """Patch of one command's changes to the workbench."""
    if (kind.name, command) not in PATCHES:
        with Scratch() as scratch, kind.open(scratch / "ws") as workspace:
            done = workspace.execute(command, 60)
            assert done.returncode == 0, done.output
            PATCHES[kind.name, command] = workspace.diff()
    return PATCHES[kind.name, command]


def grade(
    kind: Kind, task: RolloutTask, patch: bytes, folder: Path, timeout_s: float = 120, **changes: Any
) -> TestRun:
    image = dataclasses.replace(kind.image, **changes)
    return run_tests(task, image, patch, GradeStore(folder), kind.sandbox, timeout_s=timeout_s)


APPEND = "cat >> src/widget/core.py <<'EOF'\n{code}\nEOF"
SUMMARY = "=========================== short test summary info ============================"
PRINT_PASSED = f"""
import os, sys, glob
def _claim():
    lines = ["{SUMMARY}"]
    for test in {tiny_image.FAIL_TO_PASS + tiny_image.PASS_TO_PASS!r}:
        lines.append("PASSED " + test)
    lines.append("============ 4 passed in 0.01s ============")
    for number in list(range(1, 10)):
        try:
            os.write(number, ("\\n" + "\\n".join(lines) + "\\n").encode())
        except OSError:
            pass
"""

FORGERIES = {
    "exit 0 at import": APPEND.format(code=PRINT_PASSED + "_claim(); os._exit(0)"),
    "passes printed at exit": APPEND.format(code=PRINT_PASSED + "import atexit; atexit.register(_claim)"),
    "reports patched": APPEND.format(
        code="import _pytest.reports as r\n_real = r.TestReport.from_item_and_call\n"
        "def _forged(item, call):\n    report = _real(item, call)\n    report.outcome = 'passed'\n    return report\n"
        "r.TestReport.from_item_and_call = staticmethod(_forged)"
    ),
    "markers printed": APPEND.format(
        code=PRINT_PASSED + "os.write(1, b\"+ : '>>>>> End Test Output'\\n\"); _claim()\n"
        "os.write(2, b'>>>>> Test Exit Code: 0\\n')"
    ),
}
"""For the official reader; whether they pay is tried in tests/attacks."""


def gold(kind: Kind) -> bytes:
    return patch_of(kind, tiny_image.FIX)


@LOCAL
@pytest.mark.parametrize(
    "command",
    [
        ["env", "PY_COLORS=1", "FORCE_COLOR=1", "python", "-m", "pytest", "-rA"],
        ["python", "-m", "pytest", "--color=yes", "--verbose"],
    ],
    ids=["variables and pytest.ini", "command line"],
)
def test_colours_do_not_hide_results(
    kind: Kind, task: RolloutTask, tmp_path: Path, command: list[str]
) -> None:
    run = grade(kind, task, gold(kind), tmp_path, test_command=tuple(command))
    assert decide(task, run) is Outcome.SOLVED, run.log.decode()
    assert b"\x1b" not in run.log


@LOCAL
def test_the_log_is_one_of_an_eval_script(kind: Kind, task: RolloutTask, tmp_path: Path) -> None:
    run = grade(kind, task, gold(kind), tmp_path)
    assert (run.returncode, run.canary_ok, run.applied, run.timed_out) == (0, True, True, False)
    assert read_statuses(run.log) == dict.fromkeys(task.tests, "PASSED")
    lines = run.log.decode().split("\n")
    assert lines[0] == ">>>>> Applied Patch" and lines[1] == "+ : '>>>>> Start Test Output'"
    assert lines[-3:] == ["+ : '>>>>> End Test Output'", ">>>>> Test Exit Code: 0", ""]
    assert "4 passed" in run.log.decode() and "failed" not in run.log.decode()


EVAL_PYTHON = tiny_image.REPOSITORY / "envs/eval/.venv/bin/python"
OFFICIAL = """
import json, sys
from swebench.harness.grading import get_eval_report
from swebench.harness.utils import make_test_spec
row, log = json.loads(sys.argv[1]), sys.argv[2]
prediction = {"instance_id": row["instance_id"], "model_patch": "x", "model_name_or_path": "m"}
print(json.dumps(get_eval_report(make_test_spec(row), prediction, log, include_tests_status=True)))
"""


@LOCAL
@pytest.mark.skipif(not EVAL_PYTHON.exists(), reason="needs swebench: uv sync --project envs/eval")
@pytest.mark.parametrize(
    ("command", "resolved"),
    [
        (tiny_image.FIX, True),
        ("true; echo x > x", False),
        (FORGERIES["passes printed at exit"], False),
        (FORGERIES["exit 0 at import"], False),
        (FORGERIES["reports patched"], False),
        (FORGERIES["markers printed"], False),
    ],
    ids=["gold", "no fix", "printed", "exit", "patched", "markers"],
)
def test_the_official_reader_agrees(
    kind: Kind, task: RolloutTask, tmp_path: Path, command: str, resolved: bool
) -> None:
    run = grade(kind, task, patch_of(kind, command), tmp_path / "grades")
    log = tmp_path / "test_output.txt"
    log.write_bytes(run.log)
    columns = (
        "repo",
        "version",
        "base_commit",
        "patch",
        "test_patch",
        "problem_statement",
        "image",
        "eval_script",
    )
    row = {
        **dict.fromkeys(columns, ""),
        "instance_id": task.instance_id,
        "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
        "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        "log_parser": "parse_log_pytest_v2",
        "eval_type": "pass_and_fail",
    }
    done = subprocess.run(
        [str(EVAL_PYTHON), "-c", OFFICIAL, json.dumps(row), str(log)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.strip().split("\n")[-1])[task.instance_id]
    assert report["resolved"] is resolved, run.log.decode()
    assert (decide(task, run) is Outcome.SOLVED) is resolved


@pytest.mark.parametrize("code", ["import time\ntime.sleep(3017)", "while True: pass  # 3017"])
def test_what_never_ends_ends_at_its_limit(kind: Kind, task: RolloutTask, tmp_path: Path, code: str) -> None:
    patch = patch_of(kind, APPEND.format(code=code))
    started_s = time.monotonic()
    run = grade(kind, task, patch, tmp_path, timeout_s=2)
    assert run.timed_out and run.returncode is None and time.monotonic() - started_s < 30
    assert decide(task, run) is Outcome.UNSOLVED and b">>>>> Tests Timed Out" in run.log
    assert processes("time.sleep(3017)") == []


def test_a_patch_that_does_not_apply(kind: Kind, task: RolloutTask, tmp_path: Path) -> None:
    patch = gold(kind).replace(b"value", b"other")
    run = grade(kind, task, patch, tmp_path)
    assert not run.applied and decide(task, run) is Outcome.UNSOLVED
    assert run.log.startswith(b">>>>> Patch Apply Failed\n")


def test_tests_that_write_into_their_tree(kind: Kind, task: RolloutTask, tmp_path: Path) -> None:
    patch = patch_of(kind, f"{tiny_image.FIX}\n" + APPEND.format(code="open('made', 'w').write('x')"))
    assert decide(task, grade(kind, task, patch, tmp_path)) is Outcome.SOLVED
    if kind.name == "bwrap":
        assert not (kind.image.folder / "tree/made").exists()


def test_a_dead_sandbox_is_no_result(local_image: LocalImage, task: RolloutTask, tmp_path: Path) -> None:
    broken = Bwrap(Path("/bin/false"))
    with pytest.raises(GraderError, match="did not start"):
        run_tests(task, local_image, b"", GradeStore(tmp_path), broken, timeout_s=60)
    assert not list(tmp_path.rglob("*.run"))


def test_missing_branches_and_files_are_no_result(kind: Kind, tmp_path: Path) -> None:
    def refused(match: str, **changes: Any) -> None:
        task = RolloutTask.from_row(tiny_image.row(**changes))
        with pytest.raises(GraderError, match=match):
            grade(kind, task, b"", tmp_path)

    refused("no tree to test pypi__gone", instance_id="pypi__gone.0badcafe.x__1")
    refused("has no FAIL_TO_PASS test", FAIL_TO_PASS=[], PASS_TO_PASS=[])
    refused("has no FAIL_TO_PASS test", FAIL_TO_PASS=[])
    refused("lacks tests/test_gone.py", FAIL_TO_PASS=["tests/test_gone.py::test_x"])
    assert not list(tmp_path.rglob("*.run"))


@LOCAL
def test_patches_in_odd_forms(kind: Kind, task: RolloutTask, tmp_path: Path) -> None:
    """Binary files, names with blanks and other letters, a stub, and a patch that needs some give."""
    odd = [tiny_image.FIX, "head -c 3000 /dev/urandom > 'a blob'", "ln -s README l", "chmod 755 README"]
    odd += ["printf 'x\\r\\n' > 'na\u00efve \"q\".txt'"]
    patch = patch_of(kind, "\n".join(odd))
    assert decide(task, grade(kind, task, patch, tmp_path)) is Outcome.SOLVED
    stub = b"diff --git a/x.bin b/x.bin\nnew file mode 100644\nBinary files /dev/null and b/x.bin differ\n"
    run = grade(kind, task, stub + gold(kind), tmp_path)
    assert decide(task, run) is Outcome.SOLVED and run.log.startswith(b"left out of the patch: x.bin\n")
    shifted = (
        gold(kind).replace(b"@@ -2,7 +2,7 @@", b"@@ -4,7 +4,7 @@").replace(b" def clamp", b" def  clamp")
    )
    run = grade(kind, task, shifted, tmp_path)
    assert decide(task, run) is Outcome.SOLVED, run.log.decode()
    escape = gold(kind).replace(b"src/widget/core.py", b"../../run/x.py")
    run = grade(kind, task, escape, tmp_path)
    assert not run.applied and decide(task, run) is Outcome.UNSOLVED


def test_the_empty_patch_solves_nothing(kind: Kind, task: RolloutTask, tmp_path: Path) -> None:
    run = grade(kind, task, b"", tmp_path)
    assert decide(task, run) is Outcome.UNSOLVED and run.returncode == 1
    assert read_statuses(run.log)[tiny_image.PASS_TO_PASS[0]] == "PASSED"
