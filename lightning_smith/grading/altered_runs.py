"""What runs with altered tests, and a run that reports values, say against a patch that passes.

In each altered run some tests have altered expectations (`altered.py`) and the others are as they are; which, is drawn
by lot (`assignments.py`). Whatever passes with altered expectations, and would fail with the reference solution, was
not earned: the outcome is TAMPERED. What does not pass again is UNSOLVED, and so is a patch with hits of the scan on a
task whose FAIL_TO_PASS tests cannot tell whether it forged them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from random import Random

from lightning_smith.core.files import hash_json
from lightning_smith.grading.assignments import MixedPlan, Results, name_of
from lightning_smith.grading.canary import Reading
from lightning_smith.grading.references import References
from lightning_smith.grading.store import Check, RunStore, TestRun
from lightning_smith.grading.tester import ReferenceRunError, Tester, Variant
from lightning_smith.grading.valued import (
    compared_sites,
    read_values,
    wrong_sites,
)
from lightning_smith.grading.verdict import TESTS_ERRORED, claims_all, statuses_of

_SITES = 5
"""Examples in a note."""


def audited(
    tester: Tester, store: RunStore, diff: bytes, chance: Random, reference: Reference, suspicious: bool
) -> TestRun:
    """Return the run of a patch as its tests are written, at a drawn place among others, and what these make of it."""
    task, key = tester.task.graded(tester.plan.grade), tester.key(diff)
    try:
        mixed = MixedPlan.drawn(task, reference.results, chance)
    except ReferenceRunError:
        # What fails as written needs no right code to say so.
        written = store.run(key, partial(tester.test, tester.base, diff))
        if claims_all(task, written) or lacks_canary(written):
            raise
        return checked(written)
    others = [
        partial(_contradicted, tester, store, diff, mixed, number, reference, suspicious)
        for number in mixed.variants
    ]
    if suspicious:
        values = partial(_other_values, tester, store, diff, mixed.deciding)
        others.insert(chance.randint(0, len(others)), values)
    place = mixed.place if not suspicious else chance.randint(0, len(others))
    found = _worst(others[:place], None)
    written = store.run(key, partial(tester.test, tester.base, diff))
    if lacks_canary(written):
        written = reference.believed(written, 0)
    if not claims_all(task, written):
        return checked(written)
    found = _worst(others[place:], found)
    if found is None:
        return checked(written, *([Check.MIXED] if mixed.variants else []))
    return _forged(checked(written), found.what) if found.forged else _unrepeated(checked(written), found)


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
    def unconfirmed(cls) -> _Found:
        """Return what is said of a patch that could forge results where no test can tell whether it did."""
        return cls(False, "its code could forge results, and no altered test of those that decide tells")

    @classmethod
    def broken(cls, tests: set[str]) -> _Found:
        names = ", ".join(sorted(tests)) or "the canary tests"
        return cls(False, f"passed at first, but not when run again: {names}", tuple(sorted(tests)))


def _worst(runs: Iterable[Callable[[], _Found | None]], found: _Found | None) -> _Found | None:
    """Return what runs say against a patch, beside what is `found` already: none is made after forged results."""
    for run in runs:
        if found is None or not found.forged:
            more = run()
            found = more if more is not None and (found is None or more.forged) else found
    return found


def _other_values(tester: Tester, store: RunStore, diff: bytes, otherwise: bool) -> _Found | None:
    """Return what a run without expectations says against a patch: values that are not those that it passed for.

    `otherwise` is whether altered runs can tell as well: without them, values have to.
    """
    nothing = None if otherwise else _Found.unconfirmed()
    key = hash_json({"values": tester.key(diff)})
    nonce = f"n{key[:15]}"
    sites = {site: each for file in tester.valued(nonce).values() for site, each in file.sites.items()}
    if not sites:
        return nothing
    try:
        right = [read_values(*tester.right_values(store, number)) for number in range(2)]
    except ReferenceRunError:
        return nothing  # these tests cannot do without their expectations
    run = store.run(key, partial(tester.values_of, tester.base, diff, nonce))
    found = read_values(run.log, nonce)
    wrong, silent = wrong_sites(sites, right, found)
    if wrong:
        return _Found(
            True, f"compared other values than when its tests expected some: {', '.join(wrong[:_SITES])}"
        )
    if silent:
        return _Found(
            False, f"compared nothing when its tests expected nothing: {', '.join(silent[:_SITES])}"
        )
    reported = (found.get(site, [None]) for site in compared_sites(sites, right))
    return None if any(None not in values for values in reported) else nothing


def _contradicted(
    tester: Tester,
    store: RunStore,
    diff: bytes,
    mixed: MixedPlan,
    variant: int,
    reference: Reference,
    suspicious: bool,
) -> _Found | None:
    """Return what an altered run says against a patch, None if nothing."""
    task, patch_key = tester.task.graded(tester.plan.grade), tester.key(diff)

    def altered_run(number: int) -> TestRun:
        key = hash_json({"variant": [number, mixed.others, patch_key]})
        run = store.run(key, partial(tester.altered_run, tester.base, diff, Variant(number, mixed.others)))
        return reference.believed(run, number) if lacks_canary(run) else run

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
        if again is None and suspicious:
            return _Found.unconfirmed()
        forged = read(altered_run(again), expected(again))[0] & soft if again is not None else set()
    if forged:
        return _Found.altered(forged)
    unheard = not run.canary_ok and right.canary_ok
    return _Found.broken(broken) if broken or unheard else None


class Reference:
    """What right code does with the altered tests of a task: shipped with the task, or found out by a run.

    The runs are the same for all tasks of an image that have the same test files and the same right code.
    """

    def __init__(self, tester: Tester, store: RunStore, shipped: References) -> None:
        self._tester, self._store, self._shipped = tester, store, shipped
        self._runs: dict[Variant, TestRun] = {}

    def results(self, number: int) -> Results:
        """Return what right code fails and passes where tests of all kinds are altered."""
        if self._known is not None:
            return self._known[number]
        return Results.of(statuses_of(self._tester.task, self.run(Variant(number))))

    @cached_property
    def _known(self) -> Sequence[Results] | None:
        tester = self._tester
        return self._shipped.find(tester.image.image_name, tester.right, tester.sources)

    def run(self, variant: Variant) -> TestRun:
        """Return the tests of a variant on right code. GraderError if they do not end, or no test has a result."""
        if variant not in self._runs:
            key, make = self._tester.right_key(variant), partial(self._tester.test_right, variant)
            self._runs[variant] = self._store.run(key, make)
        return self._runs[variant]

    def believed(self, run: TestRun, number: int) -> TestRun:
        """Return the run, which canary tests that did not run do not discredit if they do not with the right code
        either.
        """
        return _without_canary(run) if self.run(Variant(number)).canary in _UNHEARD else run


def checked(run: TestRun, *more: Check) -> TestRun:
    """Return the run with what stands behind it."""
    checks = [Check.CANARY] if run.canary == Reading.RIGHT else []
    return replace(run, checks=(*checks, *([Check.HARNESS] if run.harness_resolved else ()), *more))


_UNHEARD = (Reading.ABSENT, Reading.BROKEN)


def lacks_canary(run: TestRun) -> bool:
    """Return whether the run is disbelieved for nothing but canary tests that did not run."""
    return run.tampered and run.canary in _UNHEARD


def _without_canary(run: TestRun) -> TestRun:
    """Return a run of tests among which pytest does not find the canary's file, or cannot run it."""
    log = run.log.rpartition(f"{TESTS_ERRORED}\n".encode())[0]
    return replace(run, log=log, tampered=False, canary_ok=run.returncode in (0, 1))


def _forged(run: TestRun, note: str) -> TestRun:
    """Return the run of a patch whose results were forged."""
    return replace(_refused(run, note), canary_ok=False, tampered=True)


def _unrepeated(run: TestRun, found: _Found) -> TestRun:
    """Return the run of a patch whose result is flaky or forged."""
    return replace(_refused(run, found.what), canary_ok=False, unrepeated=found.tests)


def _refused(run: TestRun, note: str) -> TestRun:
    return replace(run, log=run.log + f"{TESTS_ERRORED}\n{note}\n".encode(), note=note)
