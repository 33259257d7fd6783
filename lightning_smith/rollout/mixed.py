"""Which tests of a run have altered expectations, and what a run that mixes them with others proves.

    runs = MixedRuns.of(task, witnesses, functions)
    altered = runs.draw(earlier, chance)     # by lot
    forged, broken = runs.against(statuses, altered)

A run proves nothing if code can know what it is: one whose tests are all as written, or all altered, is told by the
clock, by its place in the order, or by a word from another run. So a patch is tested by runs that each mix both, each
test altered in some of them and as written in others. In which ones is drawn by lot for every function: who forges must
forge exactly where it is not altered, and only the answer to the task tells where that is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lightning_smith.rollout.statuses import PASSING
from lightning_smith.rollout.task import RolloutTask

DRAWINGS = 14
"""Equally likely drawings, at least, one of which must be guessed to forge a task's solution: as many as four runs give
for a single function."""

MADE = ""
"""What the lot of tests is drawn for that are not in the test files as functions: code makes them, of what it reads."""

_NAME = re.compile(r"\w+")


def function_of(test: str) -> str:
    """Name of a test's function: of `a/test_b.py::TestC::test_d[x::y]`, or of unittest's `test_d (a.test_b.TestC)`."""
    last = test.partition("[")[0].rpartition("::")[2]
    found = _NAME.match(last.strip())
    return found[0] if found is not None else ""


def unit_of(test: str, functions: Collection[str]) -> str:
    """What a test's lot is drawn for: its function, if that is one of the test files' `functions`, else `MADE`."""
    name = function_of(test)
    return name if name in functions else MADE


@dataclass(frozen=True)
class MixedRuns:
    """The lots of a task.

    Attributes: `units` has for each test what its lot is drawn for, `witnesses` are the tests that right code fails
    once they are altered, `deciding` the units whose results a solution is forged by, `others` those of the witnesses
    beside them.
    """

    units: Mapping[str, str]
    witnesses: frozenset[str]
    deciding: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, task: RolloutTask, witnesses: Collection[str], functions: Collection[str]) -> MixedRuns:
        """The lots of a task, of whose tests at least one is among the `witnesses`.

        A test's lot is that of its function if that is one of `functions`, the names in the test files; tests that
        code makes as it runs share the lot `MADE`.
        """
        units = {test: unit_of(test, functions) for test in task.tests}
        deciding = {units[test] for test in task.fail_to_pass if test in witnesses}
        others = {units[test] for test in witnesses} - deciding
        if not deciding:
            deciding, others = others, set[str]()
        return cls(units, frozenset(witnesses), tuple(sorted(deciding)), tuple(sorted(others)))

    @property
    def count(self) -> int:
        """How many runs there are: two, or as many more as `DRAWINGS` takes, each unit having 2 ** count - 2."""
        count = 2
        while (2**count - 2) ** len(self.deciding) < DRAWINGS:
            count += 1
        return count

    def draw(self, earlier: Sequence[Collection[str]], chance: Random) -> frozenset[str]:
        """The units to alter in the run after `earlier` ones, which are told by what was altered in them.

        Over all runs each unit is altered at least once, so that nothing that passes altered tests comes through, and
        at least once is not, so that each test is repeated. Apart from that everything is equally likely.
        """
        return frozenset(unit for unit in (*self.deciding, *self.others) if self._lot(unit, earlier, chance))

    def _lot(self, unit: str, earlier: Sequence[Collection[str]], chance: Random) -> bool:
        known = [unit in altered for altered in earlier]
        while True:
            lots = [chance.random() < 0.5 for _ in range(self.count - len(earlier))]
            if len({*known, *lots}) == 2:
                return lots[0]

    def against(self, statuses: Mapping[str, str], altered: Collection[str]) -> tuple[set[str], set[str]]:
        """Tests of a mixed run that passed although they were altered, and that did not although they were not.

        Altered tests that are no witnesses may do either.
        """
        forged, broken = set[str](), set[str]()
        for test, unit in self.units.items():
            passed = statuses.get(test) in PASSING
            if unit not in altered:
                if not passed:
                    broken.add(test)
            elif passed and test in self.witnesses:
                forged.add(test)
        return forged, broken
