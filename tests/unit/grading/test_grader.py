"""Reading test results, the canary, and the store of test runs; the runs themselves are in tests/e2e."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.grading.canary import Canary, Reading, official_output, official_returncode
from lightning_smith.grading.protection import Protection
from lightning_smith.grading.statuses import read_statuses
from lightning_smith.grading.store import GradeStore, TestRun
from lightning_smith.grading.verdict import decide

COLOURED = (
    b"+ : '>>>>> Start Test Output'\n"
    b"\x1b[1m============================= test session starts ==============================\x1b[0m\n"
    b"\x1b[36m\x1b[1m=========================== short test summary info ============================\x1b[0m\n"
    b"\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_one\x1b[0m\n"
    b"\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_two[x]\x1b[0m\r\n"
    b"\x1b[31mFAILED\x1b[0m tests/test_a.py::\x1b[1mtest_three\x1b[0m - AssertionError: expected "
    b"\x1b[32mPASSED\x1b[0m tests/test_a.py::test_three\n"
    b"\x1b]8;;file:///x\x1b\\\x1b[33mXFAIL\x1b[0m tests/test_a.py::\x1b[1mtest_four\x1b[0m\x1b]8;;\x1b\\ - known\n"
    b"progress 10%\rprogress 99%\rPASSED tests/test_a.py::test_five\n"
    b"\x1b[31m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m\x1b[31m in 0.02s\x1b[0m\n"
    b"+ : '>>>>> End Test Output'\n"
)

ODD_IDS = """import pytest


@pytest.mark.parametrize("s", [
    "a - b", "x PASSED", "[1] FAILED - no", "p::q r", "end ]", "tab\\there", "nul\\x00", "\\xe9", "a|b", "1 + 1",
])
def test_p(s):
    assert s not in ("p::q r", "x PASSED")

@pytest.mark.xfail(strict=True)
def test_strict():
    pass

@pytest.mark.xfail
def test_loose():
    pass

@pytest.mark.xfail(reason="b - PASSED test_t.py::test_p[a|b]")
def test_expected():
    assert False

@pytest.mark.skip(reason="why - PASSED test_t.py::test_p[x PASSED]")
def test_s():
    pass

@pytest.fixture
def broken():
    yield
    raise ValueError("PASSED test_t.py::test_teardown")

def test_teardown(broken):
    pass
"""

ODD_STATUSES = {
    "test_t.py::test_p[a - b]": "PASSED",
    "test_t.py::test_p[x PASSED]": "FAILED",
    "test_t.py::test_p[[1] FAILED - no]": "PASSED",
    "test_t.py::test_p[p::q r]": "FAILED",
    "test_t.py::test_p[end ]]": "PASSED",
    "test_t.py::test_p[tab\\there]": "PASSED",
    "test_t.py::test_p[nul\\x00]": "PASSED",
    "test_t.py::test_p[\\xe9]": "PASSED",
    "test_t.py::test_p[a|b]": "PASSED",
    "test_t.py::test_p[1 + 1]": "PASSED",
    "test_t.py::test_strict": "FAILED",
    "test_t.py::test_loose": "XPASS",
    "test_t.py::test_expected": "XFAIL",
    "test_t.py::test_s": "SKIPPED",
    "test_t.py::test_teardown": "ERROR",
}


def test_colours_links_and_carriage_returns() -> None:
    assert read_statuses(COLOURED) == {
        "tests/test_a.py::test_one": "PASSED",
        "tests/test_a.py::test_two[x]": "PASSED",
        "tests/test_a.py::test_three": "FAILED",
        "tests/test_a.py::test_four": "XFAIL",
    }


@pytest.mark.parametrize("options", [["-rA", "-q"], ["-v"], ["-v", "-rA", "--color=yes"]], ids=" ".join)
def test_odd_ids_of_a_real_run(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_t.py").write_text(ODD_IDS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_t.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    log = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).stdout
    expected = dict(ODD_STATUSES)
    if "-v" not in options:
        del expected["test_t.py::test_s"]  # the summary names skips by file and line only
    assert read_statuses(log) == expected


def test_known_ids_settle_where_a_reason_begins() -> None:
    log = b"FAILED t.py::test_a[x] - y] - AssertionError\n"
    assert read_statuses(log) == {"t.py::test_a[x]": "FAILED"}
    assert read_statuses(log, ["t.py::test_a[x] - y]"]) == {"t.py::test_a[x] - y]": "FAILED"}


SUMMARY = "=========================== short test summary info ============================\n"


@pytest.mark.parametrize(
    "log",
    [
        f"t.py::test_a PASSED [100%]\n{SUMMARY}PASSED t.py::test_b\nFAILED t.py::test_a - no\n1 failed in 1.00s\n",
        f"{SUMMARY}FAILED t.py::test_a - no\n1 failed in 1.00s\nPASSED t.py::test_a\n",
        f"PASSED t.py::test_a\n{SUMMARY}FAILED t.py::test_a - no\n1 failed in 1.00s\n",
        f"{SUMMARY}PASSED t.py::test_a\nERROR t.py::test_a - in teardown\n== 1 passed, 1 error in 1.00s ==\n",
    ],
    ids=["verbose line", "after the counts", "before the summary", "teardown"],
)
def test_a_printed_pass_is_none(log: str) -> None:
    assert read_statuses(log.encode())["t.py::test_a"] in ("FAILED", "ERROR")


def test_a_log_that_is_not_utf8() -> None:
    assert read_statuses(b"caf\xe9 \xff\nPASSED t.py::test_a\n") == {"t.py::test_a": "PASSED"}


CANARY = Canary("tests/test_sum_first_key.py", "test_copy", "test_wrap")
GOOD = f"PASSED {CANARY.path}::test_copy\n"
BAD = f"FAILED {CANARY.path}::test_wrap - assert 2 == 3\n"


@pytest.mark.parametrize(
    ("lines", "returncode", "reading"),
    [
        (GOOD + BAD, 1, Reading.RIGHT),
        (GOOD + BAD, 0, Reading.WRONG),
        (GOOD + BAD.replace("FAILED", "PASSED").replace(" - assert 2 == 3", ""), 0, Reading.WRONG),
        (GOOD.replace("PASSED", "FAILED") + BAD, 1, Reading.BROKEN),
        (GOOD.replace("PASSED", "FAILED") + BAD, 0, Reading.WRONG),
        (GOOD.replace("PASSED", "ERROR") + BAD.replace("FAILED", "ERROR"), 1, Reading.BROKEN),
        (f"ERROR {CANARY.path} - SyntaxError: invalid syntax\n", 2, Reading.BROKEN),
        (f"ERROR {CANARY.path} - SyntaxError: invalid syntax\n", 0, Reading.WRONG),
        (GOOD + BAD.replace("FAILED", "SKIPPED"), 1, Reading.BROKEN),
        (GOOD + BAD.replace("FAILED", "PASSED") + BAD.replace("FAILED", "ERROR"), 1, Reading.WRONG),
        (GOOD + BAD.replace("FAILED", "XFAIL"), 0, Reading.WRONG),
        (GOOD, 1, Reading.ABSENT),
        ("", 0, Reading.ABSENT),
        ("", 4, Reading.ABSENT),
    ],
)
def test_reading_of_the_canary(lines: str, returncode: int, reading: Reading) -> None:
    assert CANARY.read(read_statuses(lines.encode()), returncode) is reading


def test_canary_looks_like_other_tests_and_differs_each_time() -> None:
    invented = [Canary.invent("tests", ()) for _ in range(20)]
    assert len({canary.path for canary, _ in invented}) == 20
    assert all(canary.path.startswith("tests/test_") for canary, _ in invented)
    assert Canary.invent("", ())[0].path.startswith("test_")
    for canary, content in invented:
        names: dict[str, Callable[[], None]] = {}
        exec(content, names)
        names[canary.passing]()
        with pytest.raises(AssertionError):
            names[canary.failing]()


def test_canary_takes_no_name_that_is_taken() -> None:
    class AllButOne:
        """Says of every name but the fifth that it is taken."""

        asked = 0

        def __contains__(self, path: object) -> bool:
            self.asked += 1
            return self.asked < 5

    names = AllButOne()
    Canary.invent("tests", names)
    assert names.asked == 5


def test_official_output_is_without_the_canary() -> None:
    text = (
        f"collected 3 items\nPASSED t.py::test_forged\nt.py F\n{CANARY.path} F.\n{SUMMARY}PASSED t.py::test_a\n"
        f"{GOOD}{BAD}========== 1 failed, 2 passed in 0.02s ==========\nPASSED t.py::test_late\nbye PASSED"
    )
    assert official_output(text, CANARY) == (
        f"collected 3 items\n| PASSED t.py::test_forged |\nt.py F\n{SUMMARY}PASSED t.py::test_a\n"
        "========== 1 passed in 0.02s ==========\n| PASSED t.py::test_late |\n| bye PASSED |"
    )


def test_official_exit_status_is_without_the_canary() -> None:
    log = GOOD + BAD + "PASSED t.py::test_a\n"
    statuses = read_statuses(log.encode())
    assert official_returncode(log, statuses, 1, CANARY) == 0
    assert official_returncode(log, {**statuses, "t.py::test_b": "ERROR"}, 1, CANARY) == 1
    assert official_returncode(log, statuses, 3, CANARY) == 3


def test_endless_lines_are_no_results_and_cost_no_time() -> None:
    long_id = "tests/test_a.py::test_long[" + "x" * 8000 + "]"
    lines = [b"=== short test summary info ===", b"FAILED tests/test_a.py::test_one" + b" - x[" * 1_000_000]
    lines += [b"tests/test_a.py::test_one " + b"PASSED FAILED " * 200_000, b"PASSED " + long_id.encode()]
    started_s = time.monotonic()
    statuses = read_statuses(b"\n".join(lines), [long_id])
    assert statuses == {long_id: "PASSED"} and time.monotonic() - started_s < 10


def test_folders_of_tests_are_roots_of_imports() -> None:
    protection = Protection(["checks/test_a.py", "pkg/checks/test_b.py"], ["."], ["pkg/checks/__init__.py"])
    assert protection("checks/json.py") and protection("checks/pytest/__init__.py")
    assert not protection("pkg/checks/json.py") and not protection("checks/helper.py")


def test_protected_paths() -> None:
    tests = ["pkg/tests/unit/test_a.py", "check_b.py"]
    protection = Protection(tests, [".", "src"], ["parser.py", "src/pkg/core.py"])
    protected = [
        *(
            "conftest.py",
            "pkg/conftest.py",
            "pytest.ini",
            ".pytest.ini",
            "setup.cfg",
            "a/pyproject.toml",
            "x.pth",
        ),
        *(
            "check_b.py",
            "pkg/tests/helper.py",
            "pkg/tests/__init__.py",
            "a/__pycache__/b.cpython-312.pyc",
            "b.pyc",
        ),
        *("pytest.py", "_pytest/runner.py", "src/json.py", "re/__init__.py", "sitecustomize.py", "os.so"),
        *("src/pkg.egg-info/entry_points.txt", "src/sitecustomize/__init__.py"),
    ]
    free = [
        "pkg/core.py",
        "src/pkg/json.py",
        "pkg/other.py",
        "parser.py",
        "README",
        "tests.py",
        "pkg/tests.py",
    ]
    assert [path for path in protected if not protection(path)] == []
    assert [path for path in free if protection(path)] == []


def make_run(text: str = "PASSED t.py::test_a\nPASSED t.py::test_b\n", **changes: object) -> TestRun:
    values: dict[str, object] = {
        "log": text.encode(),
        "returncode": 0,
        "timed_out": False,
        "wall_s": 0.5,
        "canary_ok": True,
        "tampered": False,
        "applied": True,
    }
    return TestRun(**{**values, **changes})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (make_run(), Outcome.SOLVED),
        (make_run("XFAIL t.py::test_a - x\nPASSED t.py::test_b\n"), Outcome.SOLVED),
        (make_run("PASSED t.py::test_a\n"), Outcome.UNSOLVED),
        (make_run("PASSED t.py::test_a\nt.py::test_b SKIPPED (x)\n"), Outcome.UNSOLVED),
        (make_run("PASSED t.py::test_a\nFAILED t.py::test_b - x\n", returncode=1), Outcome.UNSOLVED),
        (make_run(returncode=None, timed_out=True, canary_ok=False), Outcome.UNSOLVED),
        (make_run(returncode=None, applied=False, canary_ok=False), Outcome.UNSOLVED),
        (make_run(canary_ok=False, tampered=True), Outcome.TAMPERED),
        (make_run(canary_ok=False), Outcome.UNSOLVED),
        (make_run(unrepeated=("t.py::test_a",)), Outcome.UNSOLVED),
    ],
)
def test_decision(run: TestRun, outcome: Outcome) -> None:
    task = RolloutTask("i", "image", "", ("t.py::test_a",), ("t.py::test_b",))
    assert decide(task, run) is outcome


def test_a_run_is_stored_whole(tmp_path: Path) -> None:
    store = GradeStore(tmp_path)
    run = make_run(log=b"\xff\x00\nx\n", returncode=None, variant=3)
    assert store.run("ab12", lambda: run) == run
    again = GradeStore(tmp_path).run("ab12", lambda: pytest.fail("it ran twice"))
    assert again.cached and replace(again, cached=False) == run


def test_a_failure_is_not_stored(tmp_path: Path) -> None:
    store = GradeStore(tmp_path)
    with pytest.raises(ValueError, match="broken"):
        store.run("ab12", lambda: (_ for _ in ()).throw(ValueError("broken")))
    assert store.get("ab12") is None and store.run("ab12", make_run) == make_run()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_more_runs_at_once_than_slots(tmp_path: Path, slots: int) -> None:
    running, most = 0, 0
    guard = threading.Lock()

    def make() -> TestRun:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with guard:
            running -= 1
        return make_run()

    store = GradeStore(tmp_path, slots=slots)
    threads = [
        threading.Thread(target=store.run, args=(f"{number:04x}0", make), daemon=True)
        for number in range(0, 8 * 16, 16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and most == slots
    assert most <= max(slots, 2)


def _grade(folder: Path, key: str, log: Path) -> None:
    def make() -> TestRun:
        start = time.monotonic()
        time.sleep(0.3)
        with log.open("a") as file:
            file.write(json.dumps([key, start, time.monotonic()]) + "\n")
        return make_run()

    GradeStore(folder).run(key, make)


def test_equal_patches_run_once_and_two_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keys = ["aaa1", "aaa1", "aaa1", "bbb2", "ccc3", "ddd4"]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_grade, args=(tmp_path / "grades", key, log)) for key in keys]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(row[0] for row in rows) == ["aaa1", "bbb2", "ccc3", "ddd4"]
    for _, start, _ in rows:
        assert sum(other_start <= start < end for _, other_start, end in rows) <= 2
