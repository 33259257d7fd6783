"""The reference run of an unbroken package: which tests pass, how long each file takes, what it executes."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_smith.tasks.miniature.table import Source
from lightning_smith.tasks.miniature.testing import Testbed, TestRun

TIMEOUT_S = 60.0

MAX_FILE_CPU_S = 1.5
MAX_FILE_S = 8.0
"""Slower test files grade no task. What counts is processor time; the second limit is for tests that wait."""


@dataclass(frozen=True)
class FileReference:
    """One test file's reference run."""

    passed: tuple[str, ...]
    """Ids that passed in both runs, in their order; those that a log would garble are left out."""
    usable: bool
    """False if a test failed, the file did not run to its end, or the two runs disagree."""
    seconds: float
    cpu_seconds: float
    """Time and processor time of the run without tracing."""
    functions: tuple[tuple[str, int], ...]
    """(path relative to the tree, first line) of the package's functions that ran."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(row: dict[str, Any]) -> FileReference:
        functions = tuple((name, line) for name, line in row["functions"])
        return FileReference(**{**row, "passed": tuple(row["passed"]), "functions": functions})


def test_files(tree: Path, globs: tuple[str, ...]) -> list[str]:
    """Test files of an unpacked package, relative to its tree."""
    found = {path.relative_to(tree).as_posix() for pattern in globs for path in tree.glob(pattern)}
    return sorted(name for name in found if name.endswith(".py") and not name.endswith("__init__.py"))


test_files.__test__ = False  # type: ignore[attr-defined]  # its name is not that of a test


def run_reference(testbed: Testbed, tree: Path, source: Source) -> dict[str, FileReference]:
    """Run every test file by itself, twice: once to see what it executes, once to time it."""
    return {name: _run_file(testbed, tree, source, name) for name in test_files(tree, source.tests)}


def _run_file(testbed: Testbed, tree: Path, source: Source, name: str) -> FileReference:
    traced = testbed.run(tree, [name], pythonpath=source.pythonpath, trace=source.source, timeout_s=TIMEOUT_S)
    plain = testbed.run(tree, [name], pythonpath=source.pythonpath, timeout_s=TIMEOUT_S)
    root = tree.resolve()
    functions = tuple(
        (Path(file).relative_to(root).as_posix(), line)
        for file, line in traced.functions
        if file.endswith(".py")
    )
    both = plain.passed & traced.passed
    passed = tuple(test for test in plain.outcomes if test in both and survives_log(test))
    usable = _clean(traced) and _clean(plain) and traced.outcomes == plain.outcomes and bool(passed)
    return FileReference(passed, usable, plain.seconds, plain.cpu_seconds, functions)


def survives_log(test_id: str) -> bool:
    """True if a reader of `pytest -rA` lines, such as swebench's, gives this test id back unchanged.

    Such readers split at white space, cut the line of a failed test at ` - ` and remove colour codes.
    """
    one_line = test_id == " ".join(test_id.split()) and test_id.isprintable()
    return one_line and " - " not in test_id and re.search(r"\[\d+m", test_id) is None


def _clean(run: TestRun) -> bool:
    return run.returncode == 0 and "failed" not in run.outcomes.values()


def files_by_function(reference: dict[str, FileReference]) -> dict[tuple[str, int], list[str]]:
    """The usable and fast test files that execute each function."""
    covering: dict[tuple[str, int], list[str]] = {}
    for name, file in reference.items():
        if file.usable and file.cpu_seconds <= MAX_FILE_CPU_S and file.seconds <= MAX_FILE_S:
            for function in file.functions:
                covering.setdefault(function, []).append(name)
    return covering


def choose_test_files(
    covering: list[str], reference: dict[str, FileReference], max_tests: int
) -> tuple[str, ...]:
    """At most two test files for a bug: those that execute the fewest functions, so are most about this one.

    The second is left out if both together would have more than `max_tests` tests.
    """
    ranked = sorted(covering, key=lambda name: (len(reference[name].functions), name))
    chosen = ranked[:1]
    for name in ranked[1:2]:
        if sum(len(reference[each].passed) for each in (*chosen, name)) <= max_tests:
            chosen.append(name)
    return tuple(sorted(chosen))
