"""Running a package's own tests in `envs/testbed`: the same command and environment everywhere.

    with Testbed(python, work) as testbed:
        run = testbed.run(tree, ["tests/test_a.py"], pythonpath="src")
        run.passed          # ids of the tests that passed

Every run is bounded in time and memory, has no network, and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError

TEST_ARGUMENTS = (
    *("-m", "pytest", "-q", "--rootdir=.", "-o", "addopts="),
    *("-p", "no:cacheprovider", "--assert=plain", "--tb=no"),
)
"""Arguments of the Python interpreter, before the test files. `--rootdir` fixes the form of the test ids,
`addopts` of the package would ask for plugins, plain asserts save the rewriting of every test file, and
tracebacks of many failing tests take longer than the tests."""

MEMORY_MB = 2048

PLUGIN_FOLDER = Path(__file__).resolve().parent / "plugin"


def test_environment(tree: Path | str, pythonpath: str, home: Path | str) -> dict[str, str]:
    """The whole environment of a test run in `tree`.

    `pythonpath` is relative to the tree, `:` separates several; `home` is a writable folder for this run.
    """
    parts = [str((Path(tree) / part).resolve()) for part in pythonpath.split(":")]
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": ":".join(parts),
    }


test_environment.__test__ = False  # type: ignore[attr-defined]  # its name is not that of a test


@dataclass(frozen=True)
class TestRun:
    """What one run of test files did."""

    __test__ = False

    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome by test id: passed, failed, skipped or xfail; empty if the run was cut short."""
    functions: tuple[tuple[str, int], ...] = ()
    """Functions that ran: absolute file and first line (that of the first decorator)."""
    returncode: int | None = None
    """None: the run was stopped at one of its time limits."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the tests and their children, which a busy machine changes little; 0 if stopped."""
    output: str = ""
    """The last 2,000 characters that pytest printed."""

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


class Testbed:
    """Runs tests with one interpreter. As a context manager it kills what still runs at the end."""

    __test__ = False

    def __init__(self, python: Path | str, scratch: Path | str) -> None:
        """`python`: interpreter of the synced `envs/testbed`; `scratch`: folder for short-lived files."""
        self.python = Path(python).absolute()
        if not self.python.exists():
            raise UserError(f"{python} does not exist: make it with uv sync --frozen --project envs/testbed")
        self.scratch = Path(scratch).absolute()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for group in self._running:
                _kill_group(group)

    def run(
        self,
        tree: Path | str,
        files: Sequence[str],
        *,
        pythonpath: str,
        trace: str | None = None,
        timeout_s: float = 15.0,
        cpu_limit_s: float = 15.0,
    ) -> TestRun:
        """Run test files (relative to `tree`); `trace`: record the functions of this folder or file of it.

        The run is stopped after `timeout_s` seconds, or `cpu_limit_s` of processor time (rounded up).
        """
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="run-", ignore_cleanup_errors=True) as home:
            out = Path(home) / "outcomes.json"
            environment = test_environment(tree, pythonpath, home)
            environment["PYTHONPATH"] += f":{PLUGIN_FOLDER}"
            environment["MINIATURE_OUT"] = str(out)
            environment["MINIATURE_MEMORY_MB"] = str(MEMORY_MB)
            environment["MINIATURE_CPU_S"] = str(math.ceil(cpu_limit_s))
            if trace is not None:
                environment["MINIATURE_TRACE"] = str((Path(tree) / trace).resolve())
            command = [str(self.python), *TEST_ARGUMENTS, "-p", "miniature_outcomes", *files]
            started = time.monotonic()
            returncode, output = self._execute(command, tree, environment, timeout_s)
            seconds = time.monotonic() - started
            report = _read_report(out) if returncode is not None else _NO_REPORT
        functions = tuple((name, line) for name, line in report["functions"])
        return TestRun(
            report["tests"], functions, returncode, round(seconds, 3), round(report["cpu_seconds"], 3), output
        )

    def _execute(
        self, command: list[str], cwd: Path | str, environment: dict[str, str], timeout_s: float
    ) -> tuple[int | None, str]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the testbed is closed")
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process.pid)
        try:
            raw, _ = process.communicate(timeout=timeout_s)
            out_of_time = process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
            returncode = None if out_of_time else process.returncode
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            raw, _ = process.communicate()
            returncode = None
        finally:
            _kill_group(process.pid)
            process.wait()
            with self._lock:
                self._running.discard(process.pid)
        return returncode, raw.decode("utf-8", "replace")[-2000:]


_NO_REPORT: dict[str, Any] = {"tests": {}, "functions": [], "cpu_seconds": 0.0}


def _read_report(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return _NO_REPORT


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def byte_compile(python: Path | str, tree: Path | str) -> None:
    """Compile a tree's Python files; their hash is checked when loaded, so that an edit is always seen.

    Files that do not compile (samples, templates) are left without.
    """
    command = [str(python), "-m", "compileall", "-q", "-q", "--invalidation-mode", "checked-hash", "."]
    subprocess.run(command, cwd=tree, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def copy_tree(source: Path | str, target: Path | str) -> None:
    """Copy a package's tree with all that is in it (tests read documentation, write beside their data)."""
    shutil.copytree(source, target, symlinks=True)
