"""SWE-smith's own harness as the grader asks it: how tasks are tested, and what it makes of logs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from smith_environment import needs_smith

from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import SMITH_PYTHON
from lightning_smith.grading.plan import TestPlan, with_names
from lightning_smith.grading.smith_client import SmithHarness
from lightning_smith.grading.statuses import END_MARK, PASSING, START_MARK, read_statuses, read_unittest
from lightning_smith.repositories.revisions import Revisions

DATA = Path(__file__).parents[2] / "data" / "swe_smith"
OPTIONS = "-rA --color=no --tb=no --show-capture=no --maxfail=0 -p no:randomly"
ACTIVATE = "source /opt/miniconda3/bin/activate; conda activate testbed; "
UNITTEST = ("test_a (__main__.TestX)", "test_b (__main__.TestX)")


def make_task(repo: str, fail_to_pass: list[str], pass_to_pass: list[str]) -> RolloutTask:
    return RolloutTask.from_row(
        {
            "instance_id": f"{repo}.x__1",
            "repo": f"swesmith/{repo}",
            "image_name": "image",
            "FAIL_TO_PASS": fail_to_pass,
            "PASS_TO_PASS": pass_to_pass,
        }
    )


A = "tests/test_a.py::test_a"
PLAIN = [A], ["tests/test_a.py::test_b", "tests/test b.py::test_c"]
MOTO, ADDICT = make_task("getmoto__moto.694ce1f4", *PLAIN), make_task("mewwts__addict.75284f95", *PLAIN)
MIDO = make_task(
    "mido__mido.a0158ff9", ["../dev/tests/test_a.py::test_a"], ["../dev/tests/test_b.py::test_b"]
)
MYPY = make_task(
    "python__mypy.e93f06ce", ["m/t.py::S::check-a.test::testA"], ["m/u.py::S::check-b.test::testB"]
)
SLUGIFY = make_task("un33k__python-slugify.872b3750", [UNITTEST[0]], [UNITTEST[1]])
TORNADO = make_task("tornadoweb__tornado.d5ac65c1", ["test_a (tornado.test.web_test.T)"], [])
GPXPY = make_task("tkrajina__gpxpy.09fc46b3", ["test.py::T::test_a"], [])


@pytest.fixture(scope="module")
def harness() -> Iterator[SmithHarness]:
    with SmithHarness.start(SMITH_PYTHON) as harness:
        yield harness


def ask(harness: SmithHarness, task: RolloutTask, grade: Grade = Grade.ALL) -> TestPlan:
    return harness.plan(task, Revisions(), grade)


VERBOSE = f"{ACTIVATE}pytest --disable-warnings --color=no --tb=no --verbose"


@needs_smith
@pytest.mark.parametrize(
    ("task", "grade", "script"),
    [
        (ADDICT, Grade.ALL, f"{VERBOSE} {OPTIONS}"),
        (ADDICT, Grade.FAIL_TO_PASS, f"{VERBOSE} {OPTIONS} tests/test_a.py c.py"),
        (MOTO, Grade.ALL, f"{VERBOSE} {OPTIONS} tests/test_a.py 'tests/test b.py' c.py"),
        (MIDO, Grade.ALL, f"{VERBOSE} -rs -c /dev/null {OPTIONS}"),
        (MYPY, Grade.ALL, f"{ACTIVATE}pytest --color=no -rA -k 'testA or testB' {OPTIONS}"),
        (MYPY, Grade.FAIL_TO_PASS, f"{ACTIVATE}pytest --color=no -rA -k testA {OPTIONS}"),
        (GPXPY, Grade.ALL, f"{ACTIVATE}pytest test.py --verbose --color=no --tb=no --disable-warnings {OPTIONS} c.py"),
    ],
    ids=["plain", "plain f2p", "min_testing", "mido", "mypy", "mypy f2p", "gpxpy"],
)  # fmt: skip
def test_plans_are_those_of_the_profiles(
    harness: SmithHarness, task: RolloutTask, grade: Grade, script: str
) -> None:
    plan = ask(harness, task, grade)
    tree = {"test.py"} if task is GPXPY else {"tests/test_a.py"}
    assert plan.script(("c.py",), tree) == script
    assert plan.pytest and plan.grade is grade and plan.timeout_s == 90
    assert plan.harness == "swesmith 0.0.9 swebench 4.1.0"


@needs_smith
def test_protected_files_are_those_of_all_tests(harness: SmithHarness) -> None:
    assert set(ask(harness, ADDICT, Grade.FAIL_TO_PASS).test_files) == {"tests/test_a.py", "tests/test b.py"}
    assert set(ask(harness, MIDO).test_files) == {"tests/test_a.py", "tests/test_b.py"}
    assert ask(harness, TORNADO).test_files == ("tornado/test/web_test.py",)


@needs_smith
@pytest.mark.parametrize("task", [SLUGIFY, TORNADO], ids=["slugify", "tornado"])
def test_suites_without_pytest_are_never_narrowed(harness: SmithHarness, task: RolloutTask) -> None:
    plan = ask(harness, task, Grade.FAIL_TO_PASS)
    assert not plan.pytest and plan.grade is Grade.ALL and "-rA" not in plan.command


def test_a_dangling_k_never_takes_another_argument() -> None:
    with pytest.raises(UserError, match=r"ends in -k, which the names of its 1 tests cannot follow"):
        with_names("pytest -k", ["t.py::test_a[x or y]"], "acme")
    with pytest.raises(UserError, match="cannot follow"):
        with_names("pytest -k", [f"t.py::test_{number:050}" for number in range(3000)], "acme")
    with pytest.raises(UserError, match="cannot follow"):
        with_names("pytest -k", [], "acme")


@needs_smith
def test_other_languages_and_unknown_repositories_are_refused(harness: SmithHarness) -> None:
    for repo in ("pypi__widget.0badcafe", "gin-gonic__gin.3c12d2a8"):
        with pytest.raises(UserError, match=f"swesmith has no Python profile of swesmith/{repo}"):
            ask(harness, make_task(repo, *PLAIN))


def test_a_harness_that_is_absent_or_ends_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not installed at .*uv sync --frozen --project envs/smith"):
        SmithHarness.start(tmp_path / "python")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UserError, match="SWE-smith's harness"):
        SmithHarness.start(broken)


@needs_smith
def test_processes_forked_later_ask_the_same_one(harness: SmithHarness) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if ask(harness, ADDICT).pytest else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ask(harness, ADDICT).pytest


# ----------------------------------------------------------------------------------------------------------- verdicts


def real(name: str) -> tuple[RolloutTask, bytes, dict[str, Any]]:
    """A task, its real log, and the report stored beside it."""
    if name == "pandas_53652":
        row = json.loads((DATA / f"{name}.json").read_text())
        stored = {key: {"success": row[key], "failure": []} for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}
        report, log = {"resolved": True, "tests_status": stored}, (DATA / f"{name}.log").read_bytes()
        return RolloutTask.from_row({**row, "image_name": "image"}), log, report
    report = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    lists = {key: value["success"] + value["failure"] for key, value in report["tests_status"].items()}
    task = RolloutTask.from_row({**report, **lists, "image_name": "image"})
    return task, gzip.decompress((DATA / f"{name}.log.gz").read_bytes()), report


@needs_smith
@pytest.mark.parametrize(
    ("name", "resolved", "passed"),
    [("pandas_53652", True, 11), ("pandas_53856", False, 595), ("moto_7331", True, 210)],
)
def test_real_logs_come_out_as_stored_by_both_readers(
    harness: SmithHarness, name: str, resolved: bool, passed: int
) -> None:
    task, log, report = real(name)
    plan = ask(harness, task)
    assert report["resolved"] is resolved
    assert harness.resolved(task, plan, log) is resolved
    statuses = read_statuses(log, task.tests)
    ours = {test for test in task.tests if statuses.get(test) in PASSING}
    assert len(ours) == passed and (len(ours) == len(task.tests)) is resolved
    assert ours == {test for part in report["tests_status"].values() for test in part["success"]}


def log_of(*lines: str) -> bytes:
    return "\n".join([f"+ : '{START_MARK}'", *lines, f"+ : '{END_MARK}'", ""]).encode()


@needs_smith
def test_faults_of_the_harness_that_would_pay(harness: SmithHarness) -> None:
    """Each is why its verdict alone pays nothing: ours says that no test passed."""
    skipped = log_of("tests/test_a.py::test_a SKIPPED", "tests/test_a.py::test_b SKIPPED", "SKIPPED")
    faults = [
        (replace(ADDICT, pass_to_pass=ADDICT.pass_to_pass[:1]), Grade.ALL, skipped),
        (SLUGIFY, Grade.FAIL_TO_PASS, log_of("nothing ran")),
        (TORNADO, Grade.FAIL_TO_PASS, log_of("nothing ran")),
        (replace(ADDICT, pass_to_pass=()), Grade.ALL, log_of(f"{A} FAILED", f"{A} PASSED")),
    ]  # fmt: skip
    for task, grade, log in faults:
        plan = replace(ask(harness, task), grade=grade)
        assert harness.resolved(task, plan, log) is True
        statuses = plan.read(log, task.tests)
        assert not all(statuses.get(test) in PASSING for test in task.tests)


def test_unittest_logs_are_read_line_by_line() -> None:
    first, second = UNITTEST
    end = "Ran 2 tests in 0.001s\n"
    assert read_unittest(log_of(f"{first} ... ok", f"{second} ... skipped 'later'", end, "OK"), UNITTEST) == {
        first: "PASSED",
        second: "SKIPPED",
    }
    failed = log_of(f"{first} ... ok", f"{second} ... ERROR", f"FAIL: {first}", end, "FAILED (failures=1)")
    assert read_unittest(failed, UNITTEST) == {first: "FAILED", second: "ERROR"}
    assert read_unittest(log_of(f"x {first} ... ok", f"{first} ... ok!", end, "OK"), UNITTEST) == {}
    for forged in (["OK", "OK"], [], ["OK", "FAILED (failures=1)"]):
        assert read_unittest(log_of(f"{first} ... ok", end, *forged), UNITTEST) == {}
    assert read_unittest(log_of(f"{first} ... FAIL", end, "OK"), UNITTEST) == {}
