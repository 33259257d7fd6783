"""Which altered runs a patch is tested by, and what such a run proves.

    plan = MixedPlan.drawn(task, failing, chance)      # failing(3): what right code fails in variant 3
    forged, broken = against(statuses, failing(3), task.tests)

Of the tests of an image there are `VARIANTS` variants, each with some expectations altered (`altered.py`). What right
code does in each is known. A patch is tested by some of them, drawn by lot, and by the tests as written, at a drawn
place among these: code that knew which run it is in could forge there, so neither the order nor the clock must tell it.
Who forges the tests of a task must forge exactly where they are not altered, and only the answer to the task tells
where that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from lightning_smith.rollout.statuses import PASSING
from lightning_smith.rollout.task import RolloutTask

VARIANTS = 8
"""Of an image's tests. About half of the test functions are altered in each, so that one is as written in all of them
once in 256 times."""

Failing = Callable[[int], frozenset[str]]
"""Ids of the tests that right code fails in a variant."""


def function_of(test: str) -> str:
    """A test's function, by the file, class and name in its id: rows of parameters are left out."""
    return test.partition("[")[0]


@dataclass(frozen=True)
class MixedPlan:
    """The altered runs of one patch.

    Attributes: `variants` are the numbers of the altered runs, in their order; `place` is how many of them come before
    the run as written.
    """

    variants: tuple[int, ...]
    place: int

    @classmethod
    def drawn(cls, task: RolloutTask, failing: Failing, chance: Random) -> MixedPlan:
        """Draw as many variants as the task needs, each with something that decides and was not altered before.

        A solution is forged by the results of the FAIL_TO_PASS tests. One altered run leaves a forger 2 * (2 ** n - 1)
        possibilities for n functions of theirs: which run is altered, and which functions in it. For a single function
        that is too little, so there are two altered runs, with 6 possibilities: altered in one of the three or in two.
        Where none of these tests tells right code from a forger, others have to.
        """
        deciding = set(map(function_of, task.fail_to_pass))
        order = chance.sample(range(VARIANTS), VARIANTS)
        variants = _covering(deciding, order, failing)
        if not variants:
            deciding = set(map(function_of, task.tests))
            variants = _covering(deciding, order, failing)
        return cls(variants, chance.randint(0, len(variants)))

    def others(self) -> Iterator[int]:
        """Variants that the patch is not tested by."""
        return (number for number in range(VARIANTS) if number not in self.variants)


def _covering(deciding: set[str], order: list[int], failing: Failing) -> tuple[int, ...]:
    """The first variants that alter what decides; the second one others than the first, if there are any."""
    wanted = 2 if len(deciding) == 1 else 1
    found: list[int] = []
    altered = set[str]()
    for number in order:
        functions = deciding.intersection(map(function_of, failing(number)))
        if functions and (not found or deciding == altered or not functions <= altered):
            found.append(number)
            altered |= functions
        if len(found) == wanted:
            return tuple(found)
    spare = [
        number for number in order if number not in found and deciding & {*map(function_of, failing(number))}
    ]
    return (*found, *spare[: wanted - len(found)])


def against(
    statuses: Mapping[str, str], failing: Collection[str], tests: Collection[str]
) -> tuple[set[str], set[str]]:
    """Tests of an altered run that passed although right code fails them, and that did not although it passes them.

    An altered parameter gives a test another id. So one that is absent did not fail if its function has as many tests
    as ever.
    """
    functions = set(map(function_of, tests))
    forged = {test for test in failing if function_of(test) in functions and statuses.get(test) in PASSING}
    found, expected = Counter(map(function_of, statuses)), Counter(map(function_of, tests))
    broken = {
        test
        for test in tests
        if test not in failing
        and statuses.get(test) not in PASSING
        and (test in statuses or found[function_of(test)] < expected[function_of(test)])
    }
    return forged, broken
