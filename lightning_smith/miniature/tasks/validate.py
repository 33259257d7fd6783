"""Which tests a bug breaks: SWE-smith's rule, run on copies of the package's tree.

A test that passes in the reference run and not with the bug is FAIL_TO_PASS; one that passes in both is
PASS_TO_PASS. A task needs at least one of each.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.miniature.tasks.reference import FileReference
from lightning_smith.miniature.tasks.table import Source, replace_line
from lightning_smith.miniature.tasks.testing import Testbed, TestRun, copy_tree

CPU_LIMIT_S = 15.0
TIMEOUT_S = 60.0
"""Limits of one run. What ends a bug that loops is processor time, which a busy machine changes little; time ends
one that waits."""


@dataclass(frozen=True)
class Verdict:
    """What one candidate's test run said."""

    fail_to_pass: tuple[str, ...]
    reason: str
    """Empty if the candidate is a valid task; else why not."""
    seconds: float

    @property
    def valid(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Validator:
    """Runs candidates of one package; safe to use from several threads."""

    testbed: Testbed
    tree: Path
    """The unbroken, byte-compiled tree; never changed."""
    source: Source
    reference: dict[str, FileReference]

    def passes_clean(self, files: tuple[str, ...]) -> bool:
        """True if the unbroken tree passes all of these files' reference tests when they run together."""
        with self._copy() as tree:
            run = self._run(tree, files)
        return run.returncode == 0 and set(self.expected(files)) <= run.passed

    def expected(self, files: tuple[str, ...]) -> list[str]:
        """Return ids that pass in the reference run of these files."""
        return [test for name in files for test in self.reference[name].passed]

    def check(self, path: str, line: int, fixed: str, buggy: str, files: tuple[str, ...]) -> Verdict:
        """Put the bug into a copy of the tree and run the files."""
        with self._copy() as tree:
            broken = tree / path
            text = broken.read_bytes().decode("utf-8")
            broken.write_bytes(replace_line(path, text, line, fixed, buggy).encode("utf-8"))
            run = self._run(tree, files)
        expected = self.expected(files)
        failing = tuple(test for test in expected if test not in run.passed)
        return Verdict(failing, _reason(run, failing, len(expected)), run.seconds)

    def _run(self, tree: Path, files: tuple[str, ...]) -> TestRun:
        # A bug that loops would always cost the whole limit, so it is bound to what the tests usually take.
        usual = sum(self.reference[name].cpu_seconds for name in files)
        return self.testbed.run(
            tree,
            files,
            pythonpath=self.source.pythonpath,
            timeout_s=TIMEOUT_S,
            cpu_limit_s=min(CPU_LIMIT_S, 2.0 + 4.0 * usual),
        )

    @contextlib.contextmanager
    def _copy(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self.testbed.scratch, prefix="tree-"))
        try:
            copy_tree(self.tree, folder / "tree")
            yield folder / "tree"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _reason(run: TestRun, failing: tuple[str, ...], expected: int) -> str:
    if run.returncode is None:
        return "time limit"
    if not run.outcomes:
        return "no outcomes"
    if not failing:
        return "no test fails"
    if len(failing) == expected:
        return "every test fails"
    return ""
