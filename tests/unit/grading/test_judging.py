"""What the grader makes of whole test runs: subtests that fail, evidence of forging, and what is none."""

from __future__ import annotations

import os
import posixpath
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.grading.canary import Canary
from lightning_smith.grading.plan import PROFILE_OPTIONS, TEST_OPTIONS, TestPlan
from lightning_smith.grading.statuses import read_statuses, read_unittest
from lightning_smith.grading.store import TestRun
from lightning_smith.grading.verdict import decide, judge
from lightning_smith.sandbox.bwrap import Completed

LOGS = Path(__file__).parents[2] / "data/subtests"
"""Of pytest 9, and of pytest 8 with pytest-subtests 0.14.2; `only`: of two of the tests."""

TABLE, PLAIN = "test_rates.py::Rates::test_table", "test_rates.py::Rates::test_plain"
SQUARES, ALL_GOOD = "test_rates.py::test_squares", "test_rates.py::test_all_good"


def task_of(*tests: str) -> RolloutTask:
    return RolloutTask("i", "image", "", tests[:1], tests[1:])


def done_of(output: str, returncode: int) -> Completed:
    return Completed(output.encode(), 0, returncode, None, None, 0.1)


def plan_of(*files: str) -> TestPlan:
    return TestPlan("pytest", files, files)


@pytest.mark.parametrize("known", [(), (TABLE, PLAIN, SQUARES, ALL_GOOD)], ids=["ids unknown", "ids known"])
@pytest.mark.parametrize("name", ["pytest_8_plugin", "pytest_8_plugin_only", "pytest_9", "pytest_9_only"])
def test_a_subtest_that_failed_fails_its_test(name: str, known: tuple[str, ...]) -> None:
    expected = {TABLE: "FAILED", PLAIN: "PASSED", SQUARES: "FAILED", ALL_GOOD: "PASSED"}
    if name.endswith("only"):
        expected = {test: expected[test] for test in (SQUARES, ALL_GOOD)}
    assert read_statuses((LOGS / f"{name}.txt").read_bytes(), known) == expected


@pytest.mark.parametrize("name", ["pytest_8_plugin", "pytest_8_plugin_only", "pytest_9", "pytest_9_only"])
def test_no_patch_is_solved_with_which_a_subtest_fails(name: str) -> None:
    """The canary tests are put into a real log; the task is about the test that the plugin calls PASSED."""
    canary = Canary("test_sum_first_key.py", "test_copy", "test_wrap")
    ours = (
        f"PASSED {canary.path}::{canary.passing}\nFAILED {canary.path}::{canary.failing} - assert 2 == 3\n==="
    )
    *lines, counts = (LOGS / f"{name}.txt").read_text().splitlines()
    for word in ("failed", "passed"):
        number = next(each.split()[0] for each in counts.strip("= ").split(", ") if each.split()[1] == word)
        counts = counts.replace(f"{number} {word}", f"{int(number) + 1} {word}", 1)
    output = "\n".join([*lines, ours.removesuffix("==="), counts, ""])
    run = judge(task_of(SQUARES, ALL_GOOD), plan_of("test_rates.py"), done_of(output, 1), canary, [])
    assert (run.canary, run.returncode, run.tampered) == ("right", 1, False)
    assert decide(task_of(SQUARES, ALL_GOOD), run) is Outcome.UNSOLVED
    assert decide(task_of(ALL_GOOD), run) is Outcome.SOLVED
    kept = run.log.decode().splitlines()
    assert (LOGS / f"{name}.txt").read_text().splitlines()[-1].strip("= ") in [
        line.strip("= ") for line in kept
    ]


SUMMARY = "=========================== short test summary info ============================\n"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("SUBFAIL t.py::test_a[x - y] - assert 1", "FAILED"),
        ("SUBFAILED[see t.py::test_z] (i='a b') t.py::test_a[x - y] - assert ' - '", "FAILED"),
        ("[a] SUBFAIL b] (i=1) SUBFAIL t.py::test_a[x - y]", "FAILED"),
        ("SUBFAILED(value=first line", "FAILED"),
        ("SUBFAILED(value=" + "x" * 9000 + ") t.py::test_b", "FAILED"),
        ("SUBFAILED(i=1) t.py::test_b - assert 1", "PASSED"),
        ("SUBSKIPPED[t.py::test_a[x - y]] (i=1) [1] t.py:3: no", "PASSED"),
        ("[SUBFAIL t.py::test_a[x - y]] SUBSKIP [1] t.py:3: no", "PASSED"),
        ("FAILED t.py::test_b - [x] SUBFAIL t.py::test_a[x - y]", "PASSED"),
    ],
)
def test_lines_of_subtests(line: str, status: str) -> None:
    """A line that does not say which test it is about counts against every one: its text is not pytest's alone."""
    log = f"{SUMMARY}PASSED t.py::test_a[x - y]\n{line}\n=== 1 failed, 1 passed, 12 subtests passed in 1.00s ===\n"
    assert read_statuses(log.encode(), ["t.py::test_a[x - y]"])["t.py::test_a[x - y]"] == status


def test_lines_of_subtests_without_end_cost_no_time() -> None:
    known = [f"t.py::test_{number}" for number in range(2000)]
    long = ("SUBFAILED" + " t.py::test_1" * 300 + "\n") * 500
    started_s = time.process_time()
    log = SUMMARY + "SUBFAIL x\n" * 200_000 + long
    assert read_statuses(log.encode(), known) == dict.fromkeys(known, "FAILED")
    assert read_statuses(f"{SUMMARY}{long}".encode(), known) == {"t.py::test_1": "FAILED"}
    assert time.process_time() - started_s < 10


@pytest.mark.parametrize(
    "counts", ["2 failed, 2 passed", "1 failed, 2 passed, 1 error", "2 failed, 9 subtests passed"]
)
def test_an_exit_status_stays_that_of_a_failure_that_no_line_names(counts: str) -> None:
    canary = Canary("test_sum_first_key.py", "test_copy", "test_wrap")
    output = (
        f"{SUMMARY}PASSED t.py::test_a\nPASSED {canary.path}::test_copy\nFAILED {canary.path}::test_wrap - no\n"
        f"==== {{}} in 0.10s ====\n"
    )
    for text, returncode in ((counts, 1), ("1 failed, 2 passed, 1 xfailed, 3 subtests passed", 0)):
        run = judge(task_of("t.py::test_a"), plan_of("t.py"), done_of(output.format(text), 1), canary, [])
        assert run.returncode == returncode


def test_a_subtest_of_unittest_that_failed_fails_its_test() -> None:
    log = (
        b"test_a (t.R.test_a) ... ok\ntest_b (t.R.test_b) ... ok\n\n"
        b"FAIL: test_a (t.R.test_a) [a message] (given=3)\n----\nFAILED (failures=1)\n"
    )
    known = ["test_a (t.R.test_a)", "test_b (t.R.test_b)"]
    assert read_unittest(log, known) == {known[0]: "FAILED", known[1]: "PASSED"}


@dataclass
class Project:
    """A folder in which pytest runs with the grader's options and canary tests."""

    folder: Path
    task: RolloutTask

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def run(self, options: Sequence[str] = TEST_OPTIONS) -> TestRun:
        files = self.task.test_files
        canary, content = Canary.invent(posixpath.dirname(files[0]), ())
        (self.folder / canary.path).write_bytes(content)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *files, canary.path]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        (self.folder / canary.path).unlink()
        returncode = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return judge(self.task, plan_of(*files), done_of(done.stdout.decode(), returncode), canary, [])

    def outcome(self, code: str, options: Sequence[str] = TEST_OPTIONS) -> Outcome:
        """Of `code` in the place of the package's only function."""
        self.write({"box/core.py": code})
        return decide(self.task, self.run(options))


RIGHT = "def square(number):\n    return number * number\n"
VERBOSE = ("--verbose", *PROFILE_OPTIONS)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A package that holds its own tests, and tests beside it that pass without it."""
    tests = (
        "box/tests/test_core.py::test_squares",
        "box/tests/test_core.py::test_three",
        "checks/test_free.py::test_free",
    )
    found = Project(tmp_path, RolloutTask("i", "image", "", tests[:1], tests[1:]))
    found.write(
        {
            "box/__init__.py": "from box.core import square\n",
            "box/tests/__init__.py": "",
            "box/tests/test_core.py": (
                "from box import square\n\n\ndef test_squares(subtests):\n    for number in (1, 2, 3):\n"
                "        with subtests.test(msg='a - b', number=number):\n"
                "            assert square(number) == number**2\n\n\n"
                "def test_three():\n    assert square(3) == 9\n"
            ),
            "checks/test_free.py": "def test_free():\n    assert True\n",
        }
    )
    return found


@pytest.mark.parametrize("options", [TEST_OPTIONS, VERBOSE], ids=["image", "profile"])
def test_what_breaks_one_subtest_is_unsolved(project: Project, options: Sequence[str]) -> None:
    assert project.outcome(RIGHT, options) is Outcome.SOLVED
    assert project.outcome(RIGHT.replace("number * number", "number * number + (number == 2)"), options) is (
        Outcome.UNSOLVED
    )


BROKEN = {
    "a syntax error": "def square(number)\n    return number * number\n",
    "a module that does not exist": "from box.other import square\n",
    "a crash at import": "import os\nos.abort()\n",
    "a crash in a test": f"import os\n{RIGHT}".replace("return", "number != 3 or os.abort()\n    return"),
    "an interrupt": RIGHT.replace("return", "if number == 3: raise KeyboardInterrupt\n    return"),
    "an exit at import": "raise SystemExit(0)\n",
}


@pytest.mark.parametrize("options", [TEST_OPTIONS, VERBOSE], ids=["image", "profile"])
@pytest.mark.parametrize("reason", BROKEN)
def test_what_cannot_run_is_unsolved(project: Project, reason: str, options: Sequence[str]) -> None:
    """Other tests of the run pass, and the canary tests cannot run: nobody forges a result that solves nothing."""
    assert project.outcome(BROKEN[reason], options) is Outcome.UNSOLVED


@pytest.mark.parametrize("then", ["raise", "pytest.skip('no box')"])
def test_a_fixture_that_needs_what_is_broken_is_no_forgery(project: Project, then: str) -> None:
    project.write(
        {
            "box/__init__.py": "",
            "box/tests/test_core.py": "def test_squares():\n    pass\ndef test_three():\n    pass\n",
            "box/tests/conftest.py": (
                "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef box():\n    try:\n        import box.core\n"
                f"    except ImportError:\n        {then}\n"
            ),
        }
    )
    assert project.outcome(RIGHT) is Outcome.SOLVED
    assert project.outcome(BROKEN["a module that does not exist"]) is Outcome.UNSOLVED


HOOKS = "import gc, os, sys\nfrom _pytest import reports, terminal\n" + RIGHT.replace("number * number", "0")
PRINT = f"""
def claim(count):
    tests = "box/tests/test_core.py::test_squares box/tests/test_core.py::test_three checks/test_free.py::test_free"
    lines = {SUMMARY!r} + "\\n".join("PASSED " + test for test in tests.split()[:count])
    for descriptor in range(1, 10):
        try:
            os.write(descriptor, f"{{lines}}\\n=== {{count}} passed in 0.01s ===\\n".encode())
        except OSError:
            pass
"""
FORGED = {
    "every report passes": HOOKS
    + "made = reports.TestReport.from_item_and_call\n"
    + "def forged(item, call):\n    report = made(item, call)\n    report.outcome = 'passed'\n    return report\n"
    + "reports.TestReport.from_item_and_call = forged\n",
    "all passed, exit 0": HOOKS + PRINT + "claim(3)\nos._exit(0)\n",
    "all passed, exit 1": HOOKS + PRINT + "claim(3)\nos._exit(1)\n",
    "some passed, exit 1": HOOKS + PRINT + "claim(2)\nos._exit(1)\n",
    "nothing said, exit 0": HOOKS + "os._exit(0)\n",
    "failures left out": HOOKS
    + "terminal.TerminalReporter.short_test_summary = (lambda whole: lambda self: ("
    + "self.stats.pop('failed', None), whole(self)))(terminal.TerminalReporter.short_test_summary)\n",
    "exit 0 beside failures": HOOKS + "import atexit\natexit.register(os._exit, 0)\n",
}


@pytest.mark.parametrize("code", FORGED.values(), ids=list(FORGED))
def test_what_claims_the_impossible_is_tampered(project: Project, code: str) -> None:
    assert project.outcome(code) is Outcome.TAMPERED
