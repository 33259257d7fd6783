"""Whether a patch solves its task: its tests, run in trees that the policy never touched.

    run = run_tests(task, image, patch, store, sandbox, timeout_s=15)
    outcome = decide(task, run)

A run is made by `tester.py` and believed by `verdict.py`; what passes may have to hold in `altered_runs.py`.

Where SWE-smith's own harness belongs to the plan, it reads the same log, and must call the task solved as well. If
it does not, there is no verdict: GRADER_ERROR. What it alone calls solved is UNSOLVED. Tests that pytest does not run
have no canary; `TestRun.checks` says what stood behind a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.errors import unforeseen
from lightning_smith.grading.altered_runs import Reference, audited, checked, lacks_canary
from lightning_smith.grading.assignments import VARIANTS, Results
from lightning_smith.grading.audit import Audit
from lightning_smith.grading.plan import ImageTests, TestPlans
from lightning_smith.grading.references import ReferenceRow, References, sha256
from lightning_smith.grading.store import FreshRuns, RunStore, TestRun
from lightning_smith.grading.tester import GraderError, ReferenceRunError, Tester, Variant
from lightning_smith.grading.verdict import decide, disagreement, statuses_of
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.sandbox.bwrap import SandboxError
from lightning_smith.sandbox.trees import Sandbox


def run_tests(
    task: RolloutTask,
    image: Revisions,
    diff: bytes,
    store: RunStore,
    sandbox: Sandbox,
    *,
    timeout_s: float,
    scratch: Path | None = None,
    plans: TestPlans | None = None,
    grade: Grade = Grade.ALL,
    audit: Audit | None = None,
    references: References | None = None,
) -> TestRun:
    """Return the task's tests on its tree with `diff` applied, from the store if they ran before.

    `audit` says which patches are tested by altered runs as well; all of them are if it is absent. `references` have
    what right code does with altered tests; what they lack is run.

    `timeout_s` bounds the tests' processor time where their plan does not, and `WALL_FACTOR` times it their wall
    clock; `scratch` is where the tree goes if /dev/shm is full. `plans` are those of the images themselves if absent.
    Raise GraderError if the tests cannot be run.
    """
    tester = Tester.make(task, image, sandbox, timeout_s, scratch, plans or ImageTests(), grade)
    hits = tester.scan(diff)
    reference = Reference(tester, store, references or References())
    return replace(_tested(tester, store, diff, hits, audit, reference), hits=hits)


def reference_row(
    task: RolloutTask, image: Revisions, sandbox: Sandbox, *, timeout_s: float, **options: Any
) -> ReferenceRow:
    """Return what the right code of a task does with its tests in each variant, seen twice; `options` as for
    `run_tests`.

    Raise GraderError if the tests do not end, or none has a result.
    """
    names = ("scratch", "plans", "grade")
    scratch, plans, grade = (options.get(name) for name in names)
    tester = Tester.make(task, image, sandbox, timeout_s, scratch, plans or ImageTests(), grade or Grade.ALL)

    def results(number: int) -> Results:
        first, second = (Results.of(statuses_of(task, tester.test_right(Variant(number)))) for _ in range(2))
        return Results(first.failing & second.failing, first.passing & second.passing)

    sources = {path: sha256(source) for path, source in tester.sources.items()}
    return ReferenceRow(image.image_name, tester.right, sources, tuple(map(results, range(VARIANTS))))


def _tested(
    tester: Tester,
    store: RunStore,
    diff: bytes,
    hits: tuple[str, ...],
    audit: Audit | None,
    reference: Reference,
) -> TestRun:
    """Return the run of a patch as its tests are written, and what altered runs make of it where the audit has them."""
    key = tester.key(diff)
    try:
        if audit is not None and not audit.due(key, hits):
            run = store.run(key, partial(tester.test, tester.base, diff))
            # Where pytest does not run the canary's file, right code has to show it.
            if not lacks_canary(run):
                return checked(run)
            return audited(tester, store, diff, SystemRandom(), reference, bool(hits))
        chance = SystemRandom() if audit is None else audit.chance(key)
        run = audited(tester, store, diff, chance, reference, bool(hits))
    except SandboxError as error:
        raise GraderError(str(error)) from None
    if audit is not None and run.tampered:
        audit.found()
    return run


@dataclass(frozen=True)
class Graded:
    """What a patch is worth: GRADER_ERROR, and why, where the machine or the task kept it from being tested."""

    outcome: Outcome
    run: TestRun | None = None
    error: str | None = None


def grade(
    task: RolloutTask, image: Revisions, diff: bytes, store: RunStore, sandbox: Sandbox, **options: Any
) -> Graded:
    """Return the verdict on a policy's patch; `options` as for `run_tests`. Never raises.

    A patch must not keep itself from being judged: training leaves out what has no verdict. So where its tests cannot
    be run they are tried once more, since a busy or restarting machine does not fail twice, and then run without any
    patch. If that works, the patch is to blame, and UNSOLVED.
    """

    def test(patch: bytes, store: RunStore) -> TestRun:
        return run_tests(task, image, patch, store, sandbox, **options)

    try:
        try:
            run = test(diff, store)
        except Exception as failure:
            _reason(failure)
            run = test(diff, store)
        outcome = decide(task, run)
        wrong = disagreement(task, run) if outcome is Outcome.GRADER_ERROR else None
        return Graded(outcome, run, wrong or run.note or None)
    except Exception as failure:
        error = _reason(failure)
        if isinstance(failure, ReferenceRunError):
            return Graded(Outcome.GRADER_ERROR, None, error)
        try:
            test(b"", FreshRuns())
        except Exception:
            return Graded(Outcome.GRADER_ERROR, None, error)
        return Graded(
            Outcome.UNSOLVED, None, f"the tests run without this patch, and twice not with it: {error}"
        )


def _reason(failure: Exception) -> str:
    """Return why the tests could not be run, as a record's text."""
    return str(failure) if isinstance(failure, GraderError) else unforeseen(failure)
