"""Running a package's tests, its reference run, and which tests a bug breaks."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.tasks.reference import (
    FileReference,
    choose_test_files,
    files_by_function,
    run_reference,
    survives_log,
)
from lightning_smith.miniature.tasks.reference import test_files as find_test_files
from lightning_smith.miniature.tasks.table import Source
from lightning_smith.miniature.tasks.testing import Testbed, byte_compile
from lightning_smith.miniature.tasks.validate import Validator
from lightning_smith.miniature.tasks.window import choose_window, usable_path

CODE = """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


@staticmethod
def unused():
    return 1 + 1
"""

TEST_CLAMP = """\
import demo, pytest


def test_inside():
    assert demo.clamp(2, 1, 3) == 2


@pytest.mark.parametrize("value", ["a  b", "a"])
def test_named(value):
    assert value


def test_low():
    assert demo.clamp(0, 1, 3) == 1
"""

TEST_ODD = """\
import os, socket, pytest


@pytest.mark.skip
def test_skipped():
    pass


@pytest.mark.xfail
def test_expected():
    assert False


@pytest.fixture
def torn():
    yield
    raise RuntimeError


def test_teardown(torn):
    pass


def test_network():
    with pytest.raises(OSError, match="without network"):
        socket.create_connection(("192.0.2.1", 80), timeout=5)


def test_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_memory():
    with pytest.raises(MemoryError):
        bytearray(8 << 30)


def test_environment():
    assert os.environ["PYTHONHASHSEED"] == "0"
    assert "HF_TOKEN" not in os.environ
"""

SOURCE = Source(
    "demo",
    "1.0",
    "demo-1.0.tar.gz",
    "ab" * 32,
    "MIT",
    "train",
    "src",
    ("tests/test_*.py", "!tests/test_odd.py"),
    "src",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "demo"
    for name, text in {
        "src/demo.py": CODE,
        "tests/test_clamp.py": TEST_CLAMP,
        "tests/test_odd.py": TEST_ODD,
        "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    byte_compile(sys.executable, tree)
    return tree


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[Testbed]:
    with Testbed(sys.executable, tmp_path / "scratch") as testbed:
        yield testbed


def test_outcomes_and_executed_functions(
    testbed: Testbed, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    run = testbed.run(tree, ["tests/test_clamp.py", "tests/test_odd.py"], pythonpath="src", trace="src")
    odd = {name.partition("::")[2]: outcome for name, outcome in run.outcomes.items() if "odd" in name}
    assert odd == {
        "test_skipped": "skipped",
        "test_expected": "xfail",
        "test_teardown": "failed",
        "test_network": "passed",
        "test_loopback": "passed",
        "test_memory": "passed",
        "test_environment": "passed",
    }
    assert "tests/test_clamp.py::test_named[a  b]" in run.passed
    assert (str(tree / "src" / "demo.py"), 1) in run.functions
    assert (str(tree / "src" / "demo.py"), 9) not in run.functions, "never called"
    assert run.returncode == 1
    assert 0 < run.cpu_seconds < 60
    assert list(testbed.scratch.iterdir()) == []


def process_runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


LOOP = """\
import os, pathlib, subprocess, time


def test_loop():
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def test_time_limit_leaves_no_process(testbed: Testbed, tree: Path) -> None:
    (tree / "tests" / "test_loop.py").write_text(LOOP)
    run = testbed.run(tree, ["tests/test_loop.py"], pythonpath="src", timeout_s=8)
    assert run.returncode is None
    assert run.outcomes == {}
    pids = [int(word) for word in (tree / "pids").read_text().split()]
    assert not any(map(process_runs, pids))


def test_closing_ends_what_runs(tmp_path: Path, tree: Path) -> None:
    (tree / "tests" / "test_loop.py").write_text(LOOP)
    with Testbed(sys.executable, tmp_path / "scratch") as testbed:
        arguments = (tree, ["tests/test_loop.py"])
        thread = threading.Thread(target=testbed.run, args=arguments, kwargs={"pythonpath": "src"})
        thread.start()
        while not (tree / "pids").exists() or not (tree / "pids").read_text():
            time.sleep(0.02)
    thread.join(timeout=5)
    assert not thread.is_alive()
    pids = [int(word) for word in (tree / "pids").read_text().split()]
    deadline_s = time.monotonic() + 10  # a killed process is gone when the kernel has come to it
    while any(map(process_runs, pids)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_interpreter_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"uv sync --frozen --project envs/testbed"):
        Testbed(tmp_path / "python", tmp_path)


def test_reference_and_verdicts(testbed: Testbed, tree: Path) -> None:
    reference = run_reference(testbed, tree, SOURCE)
    assert list(reference) == ["tests/test_clamp.py"]
    clamp = reference["tests/test_clamp.py"]
    names = [name.partition("::")[2] for name in clamp.passed]
    assert names == ["test_inside", "test_named[a]", "test_low"], "an id with two blanks is left out"
    assert files_by_function(reference)["src/demo.py", 1] == ["tests/test_clamp.py"]
    assert FileReference.from_dict(clamp.to_dict()) == clamp

    validator = Validator(testbed, tree, SOURCE, reference)
    files = ("tests/test_clamp.py",)
    assert validator.passes_clean(files)

    def check(line: int, buggy: str) -> tuple[list[str], str]:
        verdict = validator.check("src/demo.py", line, CODE.split("\n")[line - 1], buggy, files)
        return [name.partition("::")[2] for name in verdict.fail_to_pass], verdict.reason

    assert check(2, "    if value > low:") == (["test_inside", "test_low"], "")
    assert check(4, "    if value >= high:") == ([], "no test fails")
    assert check(1, "def clamp(value, low, high)") == (names, "no outcomes")
    assert check(3, "        while True: pass") == ([*names], "time limit")
    assert (tree / "src" / "demo.py").read_text() == CODE
    assert list(testbed.scratch.iterdir()) == []


FLAKY = """\
import pathlib


def test_sometimes():
    count = pathlib.Path("count")
    runs = int(count.read_text()) if count.exists() else 0
    count.write_text(str(runs + 1))
    assert runs >= PASSES_FROM
"""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tests/test_odd.py", TEST_ODD, "fails in its test test_teardown"),
        ("tests/test_torn.py", "import nothing", "does not run to its end (pytest exits 2)"),
        ("tests/test_rare.py", FLAKY.replace("PASSES_FROM", "3"), ""),
        ("tests/test_mute.py", "def test_one():\n    import pytest; pytest.skip()", "has no test whose id"),
        (
            "tests/test_moody.py",
            FLAKY.replace(
                "assert runs", "if runs % 2: import pytest; pytest.skip()\n    assert runs"
            ).replace(">= PASSES_FROM", ">= 0"),
            "has other outcomes in its second run",
        ),
    ],
)
def test_a_test_file_that_does_not_pass_ends_the_run(
    testbed: Testbed, tree: Path, name: str, text: str, said: str
) -> None:
    """It is never left out in silence: another choice of test files would make other tasks."""
    (tree / name).write_text(text)
    source = replace(SOURCE, tests=(name,))
    if not said:
        assert list(run_reference(testbed, tree, source)) == [name], "its second attempt passes"
        return
    with pytest.raises(UserError) as caught:
        run_reference(testbed, tree, source)
    assert f"{name} of demo {said}" in str(caught.value)
    assert f";!{name} in the column tests of sources.tsv" in str(caught.value)


def test_test_files_are_those_that_the_globs_name(tree: Path) -> None:
    assert find_test_files(tree, ("tests/*.py", "!tests/test_odd.py")) == ["tests/test_clamp.py"]
    with pytest.raises(UserError, match=r"!tests/test_old\.py: correct the column tests"):
        find_test_files(tree, ("tests/*.py", "!tests/test_old.py"))


def test_edit_within_the_same_second_is_seen(testbed: Testbed, tree: Path) -> None:
    """Byte code is checked by hash: size and time of the file are the same before and after the edit."""
    file = tree / "src" / "demo.py"
    before = file.stat()
    file.write_text(CODE.replace("value < low", "value > low"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    run = testbed.run(tree, ["tests/test_clamp.py"], pythonpath="src")
    assert run.outcomes["tests/test_clamp.py::test_low"] == "failed"


def file_reference(tests: int, functions: int) -> FileReference:
    covered = tuple(("a.py", line) for line in range(functions))
    return FileReference(tuple(f"t{n}" for n in range(tests)), 1.0, covered)


def test_choice_of_test_files() -> None:
    reference = {
        "wide": file_reference(10, 50),
        "narrow": file_reference(150, 2),
        "next": file_reference(60, 3),
    }
    covering = files_by_function(reference)
    assert covering["a.py", 0] == ["wide", "narrow", "next"]
    assert choose_test_files(["wide", "narrow", "next"], reference, 200) == ("narrow",), (
        "210 tests are too many"
    )
    assert choose_test_files(["wide", "narrow"], reference, 200) == ("narrow", "wide")
    assert choose_test_files(["wide", "next", "narrow"], reference, 1000) == ("narrow", "next")


def test_ids_that_logs_garble() -> None:
    assert survives_log("tests/test_a.py::test_x[é-1]")
    for garbled in ("t::a  b", "t::a - b", "t::a\tb", "t::[31m]", "t::\u200b"):
        assert not survives_log(garbled)


def test_window_holds_the_line() -> None:
    lines = [f"line {n}" for n in range(1, 40)]
    offsets = set()
    for seed in range(60):
        window = choose_window(lines, 20, random.Random(seed))
        assert window is not None
        assert window[0] <= 20 <= window[1]
        assert window[1] - window[0] == 6
        offsets.add(20 - window[0])
    assert offsets == set(range(7)), "the place of the bug within the window tells nothing"


def test_window_at_the_ends_of_the_file() -> None:
    lines = ["a = 1", "b = 2", "", ""]
    for seed in range(20):
        window = choose_window(lines, 1, random.Random(seed))
        assert window == (1, 2), "blank lines at the end are left out"


@pytest.mark.parametrize("odd", ["\tx = 1", "x = 'é'", "x = 1\x0c", "x" * 441])
def test_window_that_cannot_be_shown(odd: str) -> None:
    assert choose_window(["a", odd, "b"], 2, random.Random(0)) is None


def test_paths_that_need_no_quotes() -> None:
    assert usable_path("src/demo_2/a-b.c.py")
    for path in ("a b.py", "a|b.py", "a'b.py", "é.py", "$x.py"):
        assert not usable_path(path)


SPIN = """\
def test_spin():
    while True:
        pass
"""


def test_processor_time_is_limited(testbed: Testbed, tree: Path) -> None:
    (tree / "tests" / "test_spin.py").write_text(SPIN)
    run = testbed.run(tree, ["tests/test_spin.py"], pythonpath="src", timeout_s=120, cpu_limit_s=1.5)
    assert run.returncode is None
    assert run.seconds < 100
