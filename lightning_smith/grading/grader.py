"""Whether a patch solves its task: its tests, run in trees that the policy never touched.

    run = run_tests(task, image, patch, store, sandbox, timeout_s=15)
    outcome = decide(task, run)

The tree is the image's at `<instance_id>~1`, with the bug and with the tests. The patch is applied without
the parts that could steer the tests (`protection.py`), the canary's file is added (`canary.py`), and the
task's tests run as their plan says (`plan.py`), in a sandbox without network and secrets.

A patch that passes is tested by more runs, in each of which some tests have altered expectations (`altered.py`) and the
others are as they are; which, is drawn by lot (`mixed.py`). Whatever passes with altered expectations, and would fail
with the task's right code, was not earned: the outcome is TAMPERED. What does not pass again is UNSOLVED.

Where SWE-smith's own harness belongs to the plan, it reads the same log, and must call the task solved as well. If
it does not, there is no verdict: GRADER_ERROR. What it alone calls solved is UNSOLVED. Tests that pytest does not run
have no canary; `TestRun.checks` says what stood behind a verdict.

The log has the form that the official eval scripts print, so that swebench and SWE-smith read the same
verdict from it: `>>>>> Applied Patch`, the output between its markers, the exit status after them. The
canary's lines are taken out, and the exit status is what it would have been without its failing test. Where a
run cannot be believed the canary's lines stay, and `>>>>> Tests Errored` makes official readers refuse it.
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from lightning_smith.config.stage import WALL_FACTOR
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.errors import UserError, unforeseen
from lightning_smith.core.files import hash_json
from lightning_smith.grading.altered import ALTERATIONS_VERSION, alter, functions_in
from lightning_smith.grading.assignments import VARIANTS, MixedPlan, Results, name_of
from lightning_smith.grading.audit import Audit
from lightning_smith.grading.canary import Canary, Reading, official_output, official_returncode
from lightning_smith.grading.plan import ImageTests, TestPlan, TestPlans
from lightning_smith.grading.protection import Protection, restore, test_folders, unrepairable
from lightning_smith.grading.references import ReferenceRow, References, sha256
from lightning_smith.grading.scan import scan_patch
from lightning_smith.grading.statuses import (
    END_MARK,
    PASSING,
    START_MARK,
    grader_text,
    has_unnamed_skips,
    is_counts_line,
    plain_text,
    read_statuses,
    read_unittest,
    split_log,
)
from lightning_smith.grading.store import Check, FreshRuns, GradeStore, RunStore, TestRun
from lightning_smith.grading.valued import DESCRIPTOR, Valued, read_values, without_expectations, wrong_sites
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.repositories.tree_files import EXECUTABLE, REGULAR, TreeFile
from lightning_smith.sandbox.bwrap import Completed, Limit, SandboxError
from lightning_smith.sandbox.diff import Stamp, changed_paths
from lightning_smith.sandbox.trees import Sandbox, TestTree, open_test_tree

__all__ = ["GradeStore", "GraderError", "TestRun", "decide", "read_statuses", "run_tests", "statuses_of"]

GRADER_VERSION = 15
"""Part of every key of the store: raise it when the same patch could come out differently."""

APPLIED = ">>>>> Applied Patch"
APPLY_FAILED = ">>>>> Patch Apply Failed"
TESTS_ERRORED = ">>>>> Tests Errored"
TESTS_TIMED_OUT = ">>>>> Tests Timed Out"
EXIT_CODE = ">>>>> Test Exit Code"

_KEEP_BYTES = 8_000_000
_SITES = 5
"""Examples in a note."""


class GraderError(UserError):
    """The tests could not be run; says nothing about the patch."""


class ReferenceRunError(GraderError):
    """Right code could not be tested: no patch has a part in that."""


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
    """The task's tests on its tree with `diff` applied, from the store if they ran before.

    `audit` says which patches are tested by altered runs as well; all of them are if it is absent. `references` have
    what right code does with altered tests; what they lack is run.

    `timeout_s` bounds the tests' processor time where their plan does not, and `WALL_FACTOR` times it their wall
    clock; `scratch` is where the tree goes if /dev/shm is full. `plans` are those of the images themselves if absent.
    Raises GraderError if the tests cannot be run.
    """
    tester = _Tester.make(task, image, sandbox, timeout_s, scratch, plans or ImageTests(), grade)
    hits = tester.scan(diff)
    reference = _Reference(tester, store, references or References())
    return replace(_tested(tester, store, diff, hits, audit, reference), hits=hits)


def reference_row(
    task: RolloutTask, image: Revisions, sandbox: Sandbox, *, timeout_s: float, **options: Any
) -> ReferenceRow:
    """What the right code of a task does with its tests in each variant, seen twice; `options` as for `run_tests`.

    GraderError if the tests do not end, or none has a result.
    """
    names = ("scratch", "plans", "grade")
    scratch, plans, grade = (options.get(name) for name in names)
    tester = _Tester.make(task, image, sandbox, timeout_s, scratch, plans or ImageTests(), grade or Grade.ALL)

    def results(number: int) -> Results:
        first, second = (Results.of(statuses_of(task, tester.test_right(Variant(number)))) for _ in range(2))
        return Results(first.failing & second.failing, first.passing & second.passing)

    sources = {path: sha256(source) for path, source in tester.sources.items()}
    return ReferenceRow(image.image_name, tester.right, sources, tuple(map(results, range(VARIANTS))))


def _tested(
    tester: _Tester,
    store: RunStore,
    diff: bytes,
    hits: tuple[str, ...],
    audit: Audit | None,
    reference: _Reference,
) -> TestRun:
    """The run of a patch as its tests are written, and what altered runs make of it where the audit has them."""
    key = tester.key(diff)
    try:
        if audit is not None and not audit.due(key, hits):
            run = store.run(key, partial(tester.test, tester.base, diff))
            # Where pytest does not run the canary's file, right code has to show it.
            if not _lacks_canary(run):
                return _checked(run)
            return _audited(tester, store, diff, SystemRandom(), reference, bool(hits))
        chance = SystemRandom() if audit is None else audit.chance(key)
        run = _audited(tester, store, diff, chance, reference, bool(hits))
    except SandboxError as error:
        raise GraderError(str(error)) from None
    if audit is not None and run.tampered:
        audit.found()
    return run


def _audited(
    tester: _Tester, store: RunStore, diff: bytes, chance: Random, reference: _Reference, suspicious: bool
) -> TestRun:
    """The run of a patch as its tests are written, at a drawn place among others, and what these make of it."""
    task, key = tester.task.graded(tester.plan.grade), tester.key(diff)
    try:
        mixed = MixedPlan.drawn(task, reference.results, chance)
    except ReferenceRunError:
        # What fails as written needs no right code to say so.
        written = store.run(key, partial(tester.test, tester.base, diff))
        if _claims_all(task, written) or _lacks_canary(written):
            raise
        return _checked(written)
    others = [
        partial(_contradicted, tester, store, diff, mixed, number, reference) for number in mixed.variants
    ]
    if suspicious:
        others.insert(chance.randint(0, len(others)), partial(_other_values, tester, store, diff))
    place = mixed.place if not suspicious else chance.randint(0, len(others))
    found = _worst(others[:place], None)
    written = store.run(key, partial(tester.test, tester.base, diff))
    if _lacks_canary(written):
        written = reference.believed(written, 0)
    if not _claims_all(task, written):
        return _checked(written)
    found = _worst(others[place:], found)
    if found is None:
        return _checked(written, *([Check.MIXED] if mixed.variants else []))
    return _forged(_checked(written), found.what) if found.forged else _unrepeated(_checked(written), found)


@dataclass(frozen=True)
class _Found:
    """What a run says against a patch: that results were `forged`, or else not repeated, and of which tests."""

    forged: bool
    what: str
    tests: tuple[str, ...] = ()

    @classmethod
    def altered(cls, tests: set[str]) -> _Found:
        names = ", ".join(sorted(tests)) or "the canary tests"
        return cls(True, f"passed although their expectations were altered: {names}")

    @classmethod
    def broken(cls, tests: set[str]) -> _Found:
        names = ", ".join(sorted(tests)) or "the canary tests"
        return cls(False, f"passed at first, but not when run again: {names}", tuple(sorted(tests)))


def _worst(runs: Iterable[Callable[[], _Found | None]], found: _Found | None) -> _Found | None:
    """What runs say against a patch, beside what is `found` already: none is made after forged results."""
    for run in runs:
        if found is None or not found.forged:
            more = run()
            found = more if more is not None and (found is None or more.forged) else found
    return found


def _other_values(tester: _Tester, store: RunStore, diff: bytes) -> _Found | None:
    """What a run without expectations says against a patch: values that are not those that it passed for."""
    key = hash_json({"values": tester.key(diff)})
    nonce = f"n{key[:15]}"
    sites = {site: each for file in tester.valued(nonce).values() for site, each in file.sites.items()}
    if not sites:
        return None
    try:
        right = [read_values(*tester.right_values(store, number)) for number in range(2)]
    except ReferenceRunError:
        return None  # these tests cannot do without their expectations
    run = store.run(key, partial(tester.values_of, tester.base, diff, nonce))
    wrong, silent = wrong_sites(sites, right, read_values(run.log, nonce))
    if wrong:
        return _Found(
            True, f"compared other values than when its tests expected some: {', '.join(wrong[:_SITES])}"
        )
    if silent:
        return _Found(
            False, f"compared nothing when its tests expected nothing: {', '.join(silent[:_SITES])}"
        )
    return None


def _contradicted(
    tester: _Tester, store: RunStore, diff: bytes, mixed: MixedPlan, variant: int, reference: _Reference
) -> _Found | None:
    """What an altered run says against a patch, None if nothing."""
    task, patch_key = tester.task.graded(tester.plan.grade), tester.key(diff)

    def altered_run(number: int) -> TestRun:
        key = hash_json({"variant": [number, mixed.others, patch_key]})
        run = store.run(key, partial(tester.altered_run, tester.base, diff, Variant(number, mixed.others)))
        return reference.believed(run, number) if _lacks_canary(run) else run

    def read(run: TestRun, results: Results) -> tuple[set[str], set[str]]:
        return results.against(statuses_of(task, run), task.tests)

    def expected(number: int) -> Results:
        results = reference.results(number)
        return results if mixed.others else results.narrowed(task)

    run = altered_run(variant)
    forged, broken = read(run, expected(variant))
    if not (forged or broken or run.tampered or not run.canary_ok):
        return None
    # Nothing speaks against a patch that right code has not been seen to do otherwise, in the very same tests.
    right = reference.run(Variant(variant, mixed.others))
    forged, broken = read(run, Results.of(statuses_of(task, right)))
    if run.tampered and not right.tampered:
        return _Found.altered(forged)
    # Code of another kind may raise what is awaited and what was put in its place. It does not do so twice.
    soft = {test for test in forged if name_of(test) in tester.altered(Variant(variant, mixed.others)).soft}
    if soft and soft == forged:
        again = next((number for number in mixed.spare() if soft & expected(number).failing), None)
        forged = read(altered_run(again), expected(again))[0] & soft if again is not None else set()
    if forged:
        return _Found.altered(forged)
    unheard = not run.canary_ok and right.canary_ok
    return _Found.broken(broken) if broken or unheard else None


class _Reference:
    """What right code does with the altered tests of a task: shipped with the task, or found out by a run.

    The runs are the same for all tasks of an image that have the same test files and the same right code.
    """

    def __init__(self, tester: _Tester, store: RunStore, shipped: References) -> None:
        self._tester, self._store, self._shipped = tester, store, shipped
        self._runs: dict[Variant, TestRun] = {}

    def results(self, number: int) -> Results:
        """What right code fails and passes where tests of all kinds are altered."""
        if self._known is not None:
            return self._known[number]
        return Results.of(statuses_of(self._tester.task, self.run(Variant(number))))

    @cached_property
    def _known(self) -> Sequence[Results] | None:
        tester = self._tester
        return self._shipped.find(tester.image.image_name, tester.right, tester.sources)

    def run(self, variant: Variant) -> TestRun:
        """The tests of a variant on right code. GraderError if they do not end, or no test has a result."""
        if variant not in self._runs:
            key, make = self._tester.right_key(variant), partial(self._tester.test_right, variant)
            self._runs[variant] = self._store.run(key, make)
        return self._runs[variant]

    def believed(self, run: TestRun, number: int) -> TestRun:
        """The run, which canary tests that did not run do not discredit if they do not with the right code either."""
        return _without_canary(run) if self.run(Variant(number)).canary in _UNHEARD else run


def statuses_of(task: RolloutTask, run: TestRun) -> dict[str, str]:
    """Status by test id, of those that the log names; what was not repeated has failed."""
    read = read_statuses if run.pytest else read_unittest
    return read(run.log, task.tests) | dict.fromkeys(run.unrepeated, "FAILED")


def _checked(run: TestRun, *more: Check) -> TestRun:
    """The run with what stands behind it."""
    checks = [Check.CANARY] if run.canary == Reading.RIGHT else []
    return replace(run, checks=(*checks, *([Check.HARNESS] if run.harness_resolved else ()), *more))


def _claims_all(task: RolloutTask, run: TestRun) -> bool:
    """Whether the run, taken by itself, solves the task."""
    return decide(task, replace(run, harness_resolved=None)) is Outcome.SOLVED


_UNHEARD = (Reading.ABSENT, Reading.BROKEN)


def _lacks_canary(run: TestRun) -> bool:
    """Whether the run is disbelieved for nothing but canary tests that did not run."""
    return run.tampered and run.canary in _UNHEARD


def _without_canary(run: TestRun) -> TestRun:
    """A run of tests among which pytest does not find the canary's file, or cannot run it."""
    log = run.log.rpartition(f"{TESTS_ERRORED}\n".encode())[0]
    return replace(run, log=log, tampered=False, canary_ok=run.returncode in (0, 1))


def _forged(run: TestRun, note: str) -> TestRun:
    """The run of a patch whose results were forged."""
    return replace(_refused(run, note), canary_ok=False, tampered=True)


def _unrepeated(run: TestRun, found: _Found) -> TestRun:
    """The run of a patch whose result is flaky or forged."""
    return replace(_refused(run, found.what), canary_ok=False, unrepeated=found.tests)


def _refused(run: TestRun, note: str) -> TestRun:
    return replace(run, log=run.log + f"{TESTS_ERRORED}\n{note}\n".encode(), note=note)


@dataclass(frozen=True)
class Graded:
    """What a patch is worth: GRADER_ERROR, and why, where the machine or the task kept it from being tested."""

    outcome: Outcome
    run: TestRun | None = None
    error: str | None = None


def grade(
    task: RolloutTask, image: Revisions, diff: bytes, store: RunStore, sandbox: Sandbox, **options: Any
) -> Graded:
    """The verdict on a policy's patch; `options` as for `run_tests`. Never raises.

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
    """Why the tests could not be run, as a record's text."""
    return str(failure) if isinstance(failure, GraderError) else unforeseen(failure)


def decide(task: RolloutTask, run: TestRun) -> Outcome:
    """SOLVED if every test that decides passed, TAMPERED if the run cannot be believed, else UNSOLVED.

    A test that the log does not list did not pass, nor did one that was skipped. GRADER_ERROR if the harness that
    was asked as well does not call the task solved.
    """
    if run.tampered:
        return Outcome.TAMPERED
    if not run.canary_ok or run.returncode is None or not _passed(task, run.grade, statuses_of(task, run)):
        return Outcome.UNSOLVED
    return Outcome.GRADER_ERROR if run.harness_resolved is False else Outcome.SOLVED


def disagreement(task: RolloutTask, run: TestRun) -> str | None:
    """What the grader and SWE-smith's harness make of one log, if that is not the same."""
    solved = _claims_all(task, run)
    if run.harness_resolved is None or run.harness_resolved is solved:
        return None
    if solved:
        return (
            f"every test of {task.instance_id} passed, but SWE-smith's harness reads that not all did: it cannot grade "
            "the task, the filter `gradable` drops such ones"
        )
    return "SWE-smith's harness alone calls the task solved"


def _passed(task: RolloutTask, grade: Grade, statuses: dict[str, str]) -> bool:
    tests = task.graded(grade).tests
    return bool(tests) and all(statuses.get(test) in PASSING for test in tests)


@dataclass(frozen=True)
class Variant:
    """A variant of the tests: of all of them, or else of the functions of the FAIL_TO_PASS tests alone."""

    number: int
    others: bool = True


@dataclass(frozen=True)
class _AlteredFiles:
    """Contents by path of what is altered, and the names of the functions whose alteration is soft (`Altered`)."""

    contents: Mapping[str, bytes]
    soft: frozenset[str]


@dataclass(frozen=True)
class _Tester:
    """Runs the tests of a task.

    `base` is the revision with bug and tests, `right` the one before the bug, which touches the files `touched`.
    """

    task: RolloutTask
    image: Revisions
    base: str
    right: str
    touched: frozenset[str]
    sandbox: Sandbox
    timeout_s: float
    scratch: Path | None
    plans: TestPlans
    plan: TestPlan

    @classmethod
    def make(
        cls,
        task: RolloutTask,
        image: Revisions,
        sandbox: Sandbox,
        timeout_s: float,
        scratch: Path | None,
        plans: TestPlans,
        grade: Grade,
    ) -> _Tester:
        base = _base(task, image)
        try:
            plan = plans.plan(task, image, grade)
        except UserError as error:
            raise GraderError(str(error)) from None
        try:
            right = image.right(base)
            touched = frozenset(change.path for change in image.changes(base, since=right))
        except UserError as error:
            raise GraderError(f"no tree to test {task.instance_id} in: {error}") from None
        # Tests that do not decide may be in files to repair, as doctests are.
        files = tuple(path for path in plan.test_files if path not in touched)
        if lost := unrepairable(touched, task.graded(plan.grade).test_files) or (
            not files and sorted(touched)
        ):
            raise GraderError(
                f"no patch can solve {task.instance_id}: its bug is in {lost[0]}, which grades it as well; the funnel "
                "drops such tasks (filter bug_in_tests)"
            )
        plan = replace(plan, test_files=files)
        return cls(
            task, image, base, right, touched, sandbox, plan.timeout_s or timeout_s, scratch, plans, plan
        )

    def key(self, diff: bytes) -> str:
        """Name of a test run in the store: a sha256 over everything that its verdict depends on."""
        return hash_json(
            {
                "grader": GRADER_VERSION,
                "instance_id": self.task.instance_id,
                "tests": [sorted(self.task.fail_to_pass), sorted(self.task.pass_to_pass)],
                "image": self.image.digest,
                "diff": hashlib.sha256(diff).hexdigest(),
                "timeout_s": self.timeout_s,
                "plan": [self.plan.command, self.plan.paths, self.plan.grade, self.plan.harness],
            }
        )

    def scan(self, diff: bytes) -> tuple[str, ...]:
        """What the scan finds in a patch, in the files of it that the grader takes."""
        protection = Protection(self.plan.test_files, (), ())
        hits = scan_patch(
            diff,
            before=partial(self._file, self.base),
            accepted=partial(self._file, self.right),
            skip=protection.steers,
        )
        return tuple(map(str, hits))

    def _file(self, revision: str, path: str) -> bytes | None:
        try:
            return self.image.file_at(revision, path)
        except UserError:
            return None

    @cached_property
    def sources(self) -> dict[str, bytes]:
        """The test files as they are, and the modules beside them in folders of tests, which can hold what they assert.

        GraderError if a test file is absent.
        """
        files = self.plan.test_files
        folders = {posixpath.dirname(path) for path in files}
        beside = [
            path
            for path in self.image.files_below(self.base, test_folders(files))
            if posixpath.dirname(path) in folders and _is_helper(posixpath.basename(path))
        ]
        found = {path: self._file(self.base, path) for path in (*files, *beside) if path not in self.touched}
        for path in files:
            if found[path] is None:
                name, task = self.image.image_name, self.task.instance_id
                raise GraderError(f"{name} lacks {path} of {task} at {self.base}")
        return {path: content for path, content in found.items() if content is not None}

    def altered(self, variant: Variant) -> _AlteredFiles:
        """The test files with the alterations of a variant."""
        if variant not in self._altered:
            only = None if variant.others else self._deciding
            # Tests that code makes as it runs, of tables or files of examples, assert in functions that are none.
            made = not self._functions.issuperset(map(name_of, self.task.tests) if only is None else only)
            found = {
                path: alter(source, path, variant.number, only, helpers=made)
                for path, source in self.sources.items()
            }
            altered = {path: each for path, each in found.items() if each is not None}
            self._altered[variant] = _AlteredFiles(
                {path: each.content for path, each in altered.items()},
                frozenset[str]().union(*(each.soft for each in altered.values())),
            )
        return self._altered[variant]

    @cached_property
    def _functions(self) -> set[str]:
        return set().union(*map(functions_in, self.sources.values()))

    @cached_property
    def _deciding(self) -> set[str]:
        return set(map(name_of, self.task.fail_to_pass))

    @cached_property
    def _altered(self) -> dict[Variant, _AlteredFiles]:
        return {}

    def right_key(self, variant: Variant) -> str:
        """Name of `test_right` in the store: the same for tasks that differ in nothing that the run depends on."""
        plan, altered = self.plan, None if variant.others else sorted(self._deciding)
        return hash_json(
            {
                "right": [GRADER_VERSION, ALTERATIONS_VERSION, self.image.digest, self.right],
                "variant": [variant.number, altered],
                "plan": [plan.command, plan.paths, plan.test_files, plan.harness, dict(plan.environment)],
            }
        )

    def test_right(self, variant: Variant) -> TestRun:
        """The altered tests on the right code. GraderError if they do not end, or no test has a result."""
        run = self.altered_run(self.right, b"", variant)
        return self._reference(run, f"altered tests (variant {variant.number})")

    def right_values(self, store: RunStore, number: int) -> tuple[bytes, str]:
        """The log of a run in which right code reports its values, and the mark of its reports; `number` tells runs.

        GraderError if its tests do not end, or none has a result.
        """
        key = hash_json({"values": [number, self.right_key(Variant(0, others=False))]})
        nonce = f"n{key[:15]}"

        def make() -> TestRun:
            return self._reference(self.values_of(self.right, b"", nonce), "tests that report values")

        return store.run(key, make).log, nonce

    def _reference(self, run: TestRun, what: str) -> TestRun:
        if run.returncode is None or not statuses_of(self.task, run):
            why = "ended at their time limit" if run.timed_out else "gave no results"
            raise ReferenceRunError(f"the {what} of {self.task.instance_id} {why} with its right code")
        return run

    def altered_run(self, revision: str, diff: bytes, variant: Variant) -> TestRun:
        """The tests with the alterations of a variant."""
        return self.test(revision, diff, self.altered(variant).contents, variant.number)

    def values_of(self, revision: str, diff: bytes, nonce: str) -> TestRun:
        """A run in which the tests that decide report values, in lines that start with `nonce`."""
        contents = {path: each.content for path, each in self.valued(nonce).items()}
        return self.test(revision, diff, contents, opening=f"exec {DESCRIPTOR}>&1; ")

    def valued(self, nonce: str) -> dict[str, Valued]:
        """Those of the test files, without their expectations, that have values to report."""
        found = {
            path: without_expectations(source, path, nonce, self._deciding)
            for path, source in self.sources.items()
        }
        return {path: each for path, each in found.items() if each is not None}

    def test(
        self,
        revision: str,
        diff: bytes,
        contents: Mapping[str, bytes] | None = None,
        variant: int | None = None,
        opening: str = "",
    ) -> TestRun:
        """The tests on the tree of `revision` with `diff` applied, in files that have other `contents`.

        `opening` stands before the tests' command. SWE-smith's harness is asked about the tests as they are written.
        """
        task, image, plan = self.task, self.image, self.plan
        with self._pristine(revision) as tree:
            before = tree.stamps()
            for path in plan.test_files:
                # The right code's revision may lack them.
                if revision == self.base and path not in before:
                    raise GraderError(f"{image.image_name} lacks {path} of {task.instance_id} at {revision}")
            protection = Protection(plan.test_files, tree.import_roots, before, self.touched)
            applied = tree.apply(diff, protection)
            changed = changed_paths(before, tree.stamps())
            put_back = restore(tree, changed, before, image, revision, protection)
            left_out = sorted({*applied.dropped, *put_back})
            header = [f"left out of the patch: {', '.join(left_out)}"] if left_out else []
            unchanged = applied.ok and not applied.empty and not changed
            if not applied.ok or unchanged:
                why = [plain_text(applied.output), *(["the patch changed nothing"] if unchanged else [])]
                log = "\n".join([*header, APPLY_FAILED, *why]).encode()
                return TestRun(
                    log,
                    None,
                    False,
                    0.0,
                    False,
                    tampered=False,
                    applied=False,
                    grade=plan.grade,
                    pytest=plan.pytest,
                )
            self._write_tests(tree, before, contents or {})
            canary = None
            if plan.pytest:
                canary, content = Canary.invent(posixpath.dirname(plan.test_files[0]), before)
                tree.write(canary.path, TreeFile(REGULAR, content))
            done = tree.run(
                opening + plan.script((canary.path,) if canary else (), before),
                environment=plan.environment,
                timeout_s=WALL_FACTOR * self.timeout_s,
                cpu_s=self.timeout_s,
                keep_bytes=_KEEP_BYTES,
            )
        if done.limit in (Limit.DISK, Limit.FILES):
            raise GraderError(f"the tests of {task.instance_id} were stopped: they {done.stopped}")
        judged = judge(task, plan, done, canary, [*header, APPLIED])
        return self._ask_harness(judged) if contents is None else replace(judged, variant=variant)

    def _ask_harness(self, run: TestRun) -> TestRun:
        if run.returncode is None:
            return run
        try:
            return replace(run, harness_resolved=self.plans.resolved(self.task, self.plan, run.log))
        except UserError as error:
            raise GraderError(str(error)) from None

    @contextmanager
    def _pristine(self, revision: str) -> Iterator[TestTree]:
        """A tree of the task that no patch has touched."""
        with ExitStack() as stack:
            try:
                tree = stack.enter_context(open_test_tree(self.sandbox, self.image, revision, self.scratch))
            except (UserError, OSError) as error:
                raise GraderError(f"no tree to test {self.task.instance_id} in: {error}") from None
            yield tree

    def _write_tests(
        self, tree: TestTree, before: Mapping[str, Stamp], contents: Mapping[str, bytes]
    ) -> None:
        """Write the files of the task's tests anew, in every run: a file's time must not tell what it holds."""
        for path in self.sources:
            mode = before[path].mode if path in before else stat.S_IFREG
            if stat.S_ISREG(mode):
                file = TreeFile(
                    EXECUTABLE if mode & stat.S_IXUSR else REGULAR, contents.get(path, self.sources[path])
                )
                tree.write(path, file)


def _is_helper(name: str) -> bool:
    """Whether a file in a folder of tests is a module that others import."""
    return name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py")


def _base(task: RolloutTask, image: Revisions) -> str:
    """The revision that has the bug and the tests."""
    if not task.fail_to_pass:
        raise GraderError(
            f"{task.instance_id} has no FAIL_TO_PASS test: nothing could tell whether it is solved; the funnel drops "
            "such tasks (filter fail_to_pass)"
        )
    try:
        return image.base(task.instance_id)
    except UserError as error:
        raise GraderError(f"no tree to test {task.instance_id} in: {error}") from None


def judge(
    task: RolloutTask, plan: TestPlan, done: Completed, canary: Canary | None, header: list[str]
) -> TestRun:
    """Turn a test run's output into a log and a verdict on its credibility.

    Tests that could not run, or that crashed, are no evidence of forging. What is: canary tests that read as they
    cannot; a whole report with passed tests, or an exit status of 0, without the canary tests, unless the report has
    skipped tests that it does not name; every test passed although the canary tests did not read right, or the exit
    status is neither 0 nor 1.
    """
    output = grader_text(done.output)
    statuses = plan.read(output.encode(), {*task.tests, *(_ids(canary) if canary else ())})
    returncode, reading = done.returncode, None
    passed = _passed(task, plan.grade, statuses)
    if canary is not None:
        reading = canary.read(statuses, returncode)
    if reading is Reading.RIGHT and canary is not None and returncode is not None:
        returncode = official_returncode(output, statuses, returncode, canary)
        output = official_output(output, canary)
    match reading:
        case None | Reading.RIGHT:
            tampered = passed and returncode not in (0, 1)
        case Reading.WRONG:
            tampered = True
        case Reading.BROKEN:
            tampered = passed
        case Reading.ABSENT:
            claims = any(statuses.get(test) in PASSING for test in task.tests)
            *_, counts = ["", *split_log(output)[1]]
            whole = is_counts_line(counts)
            unnamed = whole and has_unnamed_skips(output)
            tampered = passed or (not unnamed and (returncode == 0 or (claims and whole and returncode == 1)))
    footer = [f"{EXIT_CODE}: {returncode}"] if returncode is not None else []
    if done.stopped is not None:
        tampered = False
        footer += [TESTS_TIMED_OUT if done.timed_out else TESTS_ERRORED, f"stopped: they {done.stopped}"]
    elif canary is not None and reading is not Reading.RIGHT:
        names = f"{canary.path} {canary.passing} {canary.failing}"
        footer += [TESTS_ERRORED, f"the canary tests read {reading}: {names}"]
    elif tampered:
        footer += [TESTS_ERRORED, "the tests ended with an exit status of their own"]
    lines = [*header, f"+ : '{START_MARK}'", output.rstrip("\n"), f"+ : '{END_MARK}'", *footer, ""]
    return TestRun(
        log="\n".join(lines).encode(errors="replace"),  # names of files need not be UTF-8
        returncode=returncode,
        timed_out=done.timed_out,
        wall_s=done.wall_s,
        canary_ok=reading in (Reading.RIGHT, None) and not tampered,
        tampered=tampered,
        applied=True,
        canary="" if reading is None else reading.value,
        grade=plan.grade,
        pytest=plan.pytest,
    )


def _ids(canary: Canary) -> tuple[str, str]:
    return f"{canary.path}::{canary.passing}", f"{canary.path}::{canary.failing}"
