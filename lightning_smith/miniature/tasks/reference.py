"""The reference run of an unbroken package: which tests pass, and what each test file executes.

Which test files grade tasks is said by sources.tsv, never by a measurement: a test file that fails or is slow ends
the run, so that a busy machine makes either the same tasks or none.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.tasks.table import Source
from lightning_smith.miniature.tasks.testing import Testbed, TestRun

TIMEOUT_S = 240.0
CPU_LIMIT_S = 30.0
"""Limits of one run of one test file."""

ATTEMPTS = 3
"""Some packages test how long their code takes, which fails now and then on a busy machine."""


@dataclass(frozen=True)
class FileReference:
    """One test file's reference run."""

    passed: tuple[str, ...]
    """Ids that passed in both runs, in their order; those that a log would garble are left out."""
    cpu_seconds: float
    """Processor time of the run without tracing."""
    functions: tuple[tuple[str, int], ...]
    """(path relative to the tree, first line) of the package's functions that ran."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(row: dict[str, Any]) -> FileReference:
        functions = tuple((name, line) for name, line in row["functions"])
        return FileReference(**{**row, "passed": tuple(row["passed"]), "functions": functions})


def test_files(tree: Path, globs: tuple[str, ...]) -> list[str]:
    """Test files of an unpacked package, relative to its tree; `globs` as in `Source.tests`.

    Raise UserError for a glob that finds nothing.
    """
    found: dict[str, set[str]] = {}
    for pattern in globs:
        paths = tree.glob(pattern.removeprefix("!"))
        found[pattern] = {path.relative_to(tree).as_posix() for path in paths}
        if not found[pattern]:
            raise UserError(f"no file of {tree} is called {pattern}: correct the column tests of sources.tsv")
    left_out = {name for pattern, names in found.items() if pattern.startswith("!") for name in names}
    names = set().union(*found.values()) - left_out
    return sorted(name for name in names if name.endswith(".py") and not name.endswith("__init__.py"))


test_files.__test__ = False  # type: ignore[attr-defined]  # its name is not that of a test


def run_reference(testbed: Testbed, tree: Path, source: Source) -> dict[str, FileReference]:
    """Run every test file by itself, twice: once to see what it executes, once to time it.

    Raise UserError if a file does not pass in both runs, with the same outcomes, in any of ATTEMPTS.
    """
    return {name: _run_file(testbed, tree, source, name) for name in test_files(tree, source.tests)}


def _run_file(testbed: Testbed, tree: Path, source: Source, name: str) -> FileReference:
    why = ""
    for _ in range(ATTEMPTS):
        traced, plain = (
            testbed.run(
                tree,
                [name],
                pythonpath=source.pythonpath,
                trace=trace,
                timeout_s=TIMEOUT_S,
                cpu_limit_s=CPU_LIMIT_S,
            )
            for trace in (source.source, None)
        )
        passed = tuple(test for test in plain.outcomes if test in plain.passed and survives_log(test))
        why = _fault(traced) or _fault(plain)
        if not why and traced.outcomes != plain.outcomes:
            why = "has other outcomes in its second run"
        elif not why and not passed:
            why = "has no test whose id a log would give back"
        if not why:
            root = tree.resolve()
            functions = tuple(
                (Path(file).relative_to(root).as_posix(), line)
                for file, line in traced.functions
                if file.endswith(".py")
            )
            return FileReference(passed, plain.cpu_seconds, functions)
    raise UserError(
        f"{name} of {source.package} {why}: run again on an idle machine; a test file that is always so is left out "
        f"by ;!{name} in the column tests of sources.tsv"
    )


def _fault(run: TestRun) -> str:
    if run.returncode is None:
        return f"takes more than {CPU_LIMIT_S:.0f} s of processor time or {TIMEOUT_S:.0f} s"
    failed = sorted(test for test, outcome in run.outcomes.items() if outcome == "failed")
    if failed:
        return f"fails in its test {failed[0].partition('::')[2]}"
    return "" if run.returncode == 0 else f"does not run to its end (pytest exits {run.returncode})"


def survives_log(test_id: str) -> bool:
    """True if a reader of `pytest -rA` lines, such as swebench's, gives this test id back unchanged.

    Such readers split at white space, cut the line of a failed test at ` - ` and remove colour codes.
    """
    one_line = test_id == " ".join(test_id.split()) and test_id.isprintable()
    return one_line and " - " not in test_id and re.search(r"\[\d+m", test_id) is None


def files_by_function(reference: dict[str, FileReference]) -> dict[tuple[str, int], list[str]]:
    """Return the test files that execute each function."""
    covering: dict[tuple[str, int], list[str]] = {}
    for name, file in reference.items():
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
