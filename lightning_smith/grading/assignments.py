"""Which altered runs a patch is tested by, and what such a run proves.

    plan = MixedPlan.drawn(task, reference, chance)     # reference(3): what right code does in variant 3
    forged, broken = reference(3).against(statuses, task.tests)

Of the tests of an image there are `VARIANTS` variants, each with some expectations altered (`altered.py`). What right
code does in each is known. A patch is tested by some of them, drawn by lot, and by the tests as written, at a drawn
place among these: code that knew which run it is in could forge there, so neither the order nor the clock must tell it.
Who forges the tests of a task must forge exactly where they are not altered, and only the answer to the task tells
where that is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.grading.statuses import FAILING, PASSING

VARIANTS = 8
"""Of an image's tests. About half of the test functions are altered in each, so that one is as written in all of them
once in 256 times."""

OTHERS = 0.25
"""How likely the tests that do not decide are altered as well. Code with the bug passes them as written, so that many
failures tell a run in which they are altered; but who breaks them and forges their results is found by no other run."""


def function_of(test: str) -> str:
    """Return a test's function, by the file, class and name in its id: rows of parameters are left out."""
    return test.partition("[")[0]


def name_of(test: str) -> str:
    """Name of a test's function: of `a/test_b.py::TestC::test_d[x::y]`, or of unittest's `test_d (a.test_b.TestC)`."""
    return function_of(test).rpartition("::")[2].partition(" ")[0]


@dataclass(frozen=True)
class Results:
    """Ids of the tests that right code fails in a variant, and of those that it passes.

    An altered parameter can give a test another id, so that the one it had is in neither.
    """

    failing: frozenset[str]
    passing: frozenset[str]

    @classmethod
    def of(cls, statuses: Mapping[str, str]) -> Results:
        """Return what a run of right code shows."""
        failing = frozenset(test for test, status in statuses.items() if status in FAILING)
        return cls(failing, frozenset(test for test, status in statuses.items() if status in PASSING))

    def narrowed(self, task: RolloutTask) -> Results:
        """Return what right code does where only the functions of the task's FAIL_TO_PASS tests are altered."""
        deciding = set(map(name_of, task.fail_to_pass))

        def decide(tests: Collection[str]) -> frozenset[str]:
            return frozenset(test for test in tests if name_of(test) in deciding)

        unaltered = frozenset(task.tests) - decide(task.tests)
        return Results(decide(self.failing), decide(self.passing) | unaltered)

    def against(self, statuses: Mapping[str, str], tests: Collection[str]) -> tuple[set[str], set[str]]:
        """Return those of a task's tests that passed although right code fails them, and that did not although it
        does.
        """
        functions = set(map(function_of, tests))
        passed = {test for test, status in statuses.items() if status in PASSING}
        forged = {test for test in self.failing & passed if function_of(test) in functions}
        return forged, set(tests) & self.passing - passed


Reference = Callable[[int], Results]
"""What right code does in a variant."""


@dataclass(frozen=True)
class MixedPlan:
    """The altered runs of one patch.

    Attributes: `variants` are the numbers of the altered runs, in their order; `place` is how many of them come before
    the run as written.
    """

    variants: tuple[int, ...]
    place: int
    others: bool
    """Whether tests are altered that do not decide."""
    deciding: bool
    """Whether some of the altered tests are FAIL_TO_PASS tests that right code fails."""

    @classmethod
    def drawn(cls, task: RolloutTask, reference: Reference, chance: Random) -> MixedPlan:
        """Draw a variant that alters some of the tests that decide and leaves others as they are, or else two.

        A solution is forged by the results of the FAIL_TO_PASS tests. Where a variant mixes both kinds of n functions
        of theirs, nobody comes through who forges all of a run or nothing, whichever run it is, and others have
        2 * (2 ** n - 2) possibilities: the order, and which functions are altered. A single function can only be
        altered or not: then there are two variants, with 6 possibilities in three runs. Where no FAIL_TO_PASS test
        tells right code from a forger, others have to.
        """
        order = chance.sample(range(VARIANTS), VARIANTS)
        others = chance.random() < OTHERS
        variants = _chosen(task.fail_to_pass, order, reference, chance, others)
        deciding = bool(variants)
        if not deciding:
            variants, others = _chosen(task.tests, order, reference, chance, True), True
        return cls(variants, chance.randint(0, len(variants)), others, deciding)

    def spare(self) -> Iterator[int]:
        """Variants that the patch is not tested by."""
        return (number for number in range(VARIANTS) if number not in self.variants)


def _chosen(
    tests: Collection[str], order: list[int], reference: Reference, chance: Random, others: bool
) -> tuple[int, ...]:
    """One variant in which right code fails some of the tests and passes others, or else two: it fails all that tell
    anything in both, or in one of them."""
    functions = set(map(function_of, tests))
    failed, passed = list[int](), list[int]()
    for number in order:
        results = reference(number)
        fails = not functions.isdisjoint(map(function_of, results.failing))
        passes = not results.passing.isdisjoint(tests)
        if fails and passes:
            return (number,)
        if fails or passes:
            (failed if fails else passed).append(number)
        if len(tests) == 1 and len(failed) > 1 and passed:
            break
    if not failed:
        return ()
    # Where other tests are altered as well, their failures tell these runs from the one as written.
    known = passed[:1] if others else []
    pairs = [(failed[0], other) for other in (known or [*failed[1:2], *passed[:1]])]
    if not pairs:
        return (failed[0],)
    return tuple(chance.sample(chance.choice(pairs), 2))
