"""Which runs a grading is made of, what its verdict says stood behind it, and what is run again after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tiny_image
from kinds import KINDS, Kind

from lightning_smith.rollout.grades import Check, GradeStore, TestRun
from lightning_smith.rollout.grading import decide, run_tests
from lightning_smith.rollout.outcome import Outcome
from lightning_smith.rollout.scratch import Scratch
from lightning_smith.rollout.task import RolloutTask

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not tiny_image.TESTBED_PYTHON.exists(),
        reason="needs the testbed: uv sync --frozen --compile-bytecode --project envs/testbed",
    ),
    pytest.mark.parametrize("kind", KINDS[:1], indirect=True),
]

TASK = RolloutTask.from_row(tiny_image.row())
FORGED = """
cat >> src/widget/core.py <<'EOF'
import atexit, time
import _pytest.reports as reports
real = reports.TestReport.from_item_and_call
def forged(item, call):
    report = real(item, call)
    if item.path.name in ("test_core.py", "test_span.py"):
        report.outcome, report.longrepr = "passed", None
    return report
if time.time() < {until}:
    reports.TestReport.from_item_and_call = staticmethod(forged)
    atexit.register(time.sleep, max(0, {until} - time.time()))
EOF
"""


@dataclass
class Counted:
    """RunStore in a folder that notes what is made anew."""

    folder: Path
    made: list[str] = field(default_factory=list)

    def run(self, key: str, make: Callable[[], TestRun]) -> TestRun:
        def counted() -> TestRun:
            self.made.append("run")
            return make()

        return GradeStore(self.folder).run(key, counted)

    def pair(
        self, keys: tuple[str, str], make: Callable[[], tuple[TestRun, TestRun]], *, at_once: bool
    ) -> tuple[TestRun, TestRun]:
        def counted() -> tuple[TestRun, TestRun]:
            self.made.append("pair")
            return make()

        return GradeStore(self.folder).pair(keys, counted, at_once=at_once)


def patch_of(kind: Kind, command: str) -> bytes:
    with Scratch() as scratch, kind.open(scratch / "ws") as workspace:
        assert workspace.execute(command, 60).returncode == 0
        return workspace.diff()


def grade(
    kind: Kind, patch: bytes, folder: Path, *, expected_to_pass: bool = False
) -> tuple[TestRun, list[str]]:
    """The run that a verdict is read from, and what was made for it."""
    store = Counted(folder)
    run = run_tests(
        TASK, kind.image, patch, store, kind.sandbox, timeout_s=60, expected_to_pass=expected_to_pass
    )
    return run, store.made


def test_what_passes_is_tested_by_a_pair(kind: Kind, tmp_path: Path) -> None:
    gold = patch_of(kind, tiny_image.FIX)
    run, made = grade(kind, gold, tmp_path)
    assert decide(TASK, run) is Outcome.SOLVED and run.note == ""
    assert run.checks == (Check.CANARY, Check.ALTERED, Check.REPEATED)
    assert made == ["run", "run", "pair"], "the tests, the altered ones with right code, and the pair"
    again, made = grade(kind, gold, tmp_path)
    assert made == [] and again.cached and again.checks == run.checks
    other, made = grade(kind, patch_of(kind, f"{tiny_image.FIX}; echo x > x"), tmp_path)
    assert decide(TASK, other) is Outcome.SOLVED and made == ["run", "pair"]


def test_what_fails_is_tested_once(kind: Kind, tmp_path: Path) -> None:
    run, made = grade(kind, b"", tmp_path)
    assert decide(TASK, run) is Outcome.UNSOLVED and made == ["run"] and run.checks == (Check.CANARY,)


def test_what_should_pass_has_no_first_run(kind: Kind, tmp_path: Path) -> None:
    run, made = grade(kind, patch_of(kind, tiny_image.FIX), tmp_path, expected_to_pass=True)
    assert decide(TASK, run) is Outcome.SOLVED and made == ["run", "pair"]
    assert run.checks == (Check.CANARY, Check.ALTERED)
    run, made = grade(kind, patch_of(kind, "echo x > x"), tmp_path, expected_to_pass=True)
    assert decide(TASK, run) is Outcome.UNSOLVED and made == ["pair"]
    broken = patch_of(kind, tiny_image.FIX).replace(b"value", b"other")
    run, _ = grade(kind, broken, tmp_path, expected_to_pass=True)
    assert not run.applied and decide(TASK, run) is Outcome.UNSOLVED


def test_half_a_pair_is_run_again(kind: Kind, tmp_path: Path) -> None:
    gold = patch_of(kind, tiny_image.FIX)
    grade(kind, gold, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.run")}
    max(before, key=before.__getitem__).unlink()
    run, made = grade(kind, gold, tmp_path)
    assert decide(TASK, run) is Outcome.SOLVED and made == ["pair"]
    rewritten = [path for path in before if path.stat().st_mtime_ns != before[path]]
    assert len(before) == 4 and len(rewritten) == 2


def test_a_pass_that_is_not_repeated_is_none(kind: Kind, tmp_path: Path) -> None:
    """Forged at first and honest later, or flaky: the second run as written tells."""
    run, made = grade(kind, patch_of(kind, FORGED.format(until=int(time.time()) + 6)), tmp_path)
    assert decide(TASK, run) is Outcome.UNSOLVED and made == ["run", "run", "pair"]
    assert run.checks == (Check.CANARY,) and run.note.startswith("every test passed at first")
    assert run.log.decode().endswith(f"{run.note}\n")


def test_what_passes_altered_is_forged(kind: Kind, tmp_path: Path) -> None:
    run, _ = grade(kind, patch_of(kind, FORGED.format(until=2e9)).replace(b"atexit.register", b"#"), tmp_path)
    assert decide(TASK, run) is Outcome.TAMPERED and Check.ALTERED not in run.checks
    assert run.note.startswith(
        "passed although their expectations were altered: tests/test_core.py::test_inside"
    )
