"""Two tests of the harness that run along with the task's, to see whether the run can be believed.

One must pass and one must fail. Code that turns every report into a pass, skips tests or ends the process
early makes one of them read wrong, since it knows neither their names nor their file's before the run.

It is no proof: the code under test shares a process with pytest, and code that forges the results of tests it
knows by name, and of no others, stays unseen.
"""

from __future__ import annotations

import random
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lightning_smith.grading.statuses import FAILING, WORST_FIRST, failure_count, is_counts_line, split_log

_WORDS = """
    add apply base basic call case check clear copy count data default delete empty error filter first group
    index init items iter join keys last limit list load make merge name none order parse path range read
    remove repr reset scan set simple size slice sort split start step strip sum swap text time total type
    union unit update value wrap write zero
"""
_NEVER = ("XFAIL", "XPASS")
"""Statuses of tests that are marked, as neither test is."""
_LINE_WITH_STATUS = re.compile(f"({'|'.join(WORST_FIRST)})\\b.*|.*\\b({'|'.join(WORST_FIRST)})")


class Reading(StrEnum):
    """How the canary tests read."""

    RIGHT = "right"
    """One passed, the other failed, and the exit status says so."""
    WRONG = "wrong"
    """As pytest never reads them: the failing test did not fail, or an exit status of 0 denies a failure."""
    BROKEN = "broken"
    """They could not run, such as for an error in the package that their folder belongs to."""
    ABSENT = "absent"
    """The log does not name them."""


@dataclass(frozen=True)
class Canary:
    """The canary's file, and the names of its two tests."""

    path: str
    passing: str
    failing: str

    @classmethod
    def invent(cls, folder: str, taken: Container[str]) -> tuple[Canary, bytes]:
        """Return a canary, and the content of its file, in `folder` (relative, "" for the tree itself) under a new
        name.
        """
        chance = random.SystemRandom()
        words = _WORDS.split()
        while True:
            names = [f"test_{'_'.join(chance.sample(words, 3))}" for _ in range(3)]
            path = f"{folder}/{names[0]}.py".lstrip("/")
            if len(set(names)) == 3 and path not in taken:
                break
        tests = [f"def {names[1]}():\n    assert 1 + 1 == 2\n", f"def {names[2]}():\n    assert 1 + 1 == 3\n"]
        chance.shuffle(tests)
        return cls(path, names[1], names[2]), "\n\n".join(tests).encode()

    def read(self, statuses: Mapping[str, str], returncode: int | None) -> Reading:
        """Return what the statuses of a run say of both tests, and the exit status with them."""
        passing, failing = self._status(statuses, self.passing), self._status(statuses, self.failing)
        whole = next((status for test, status in statuses.items() if test.endswith(self.path)), None)
        failed = not FAILING.isdisjoint((passing, failing, whole))
        # A report of its failure that was turned into a pass has the failure's reason after the id.
        about = {status for test, status in statuses.items() if f"{self.path}::{self.failing}" in test}
        if passing in _NEVER or not about.isdisjoint((*_NEVER, "PASSED")) or (returncode == 0 and failed):
            return Reading.WRONG
        if (passing, failing) == ("PASSED", "FAILED"):
            return Reading.RIGHT
        return Reading.BROKEN if failed or "SKIPPED" in (passing, failing) else Reading.ABSENT

    def _status(self, statuses: Mapping[str, str], name: str) -> str | None:
        """Of one of the tests, whatever folder the run's ids are relative to."""
        wanted = f"{self.path}::{name}"
        return next((status for test, status in statuses.items() if test.endswith(wanted)), None)


def official_output(text: str, canary: Canary) -> str:
    """Return a run's output as it would be without the canary, for readers that believe any line that names a test.

    The canary's lines are taken out and the counts corrected. Lines outside of the short summary that look
    like a test's result are set between bars: pytest's own are in the summary, the code printed these.
    """
    before, summary, after = ([line for line in part if canary.path not in line] for part in split_log(text))
    if summary and is_counts_line(summary[-1]):
        summary[-1] = _without_two(summary[-1])
    return "\n".join([*map(_defuse, before), *summary, *map(_defuse, after)])


def official_returncode(text: str, statuses: Mapping[str, str], returncode: int, canary: Canary) -> int:
    """Return the exit status that pytest would have had without the canary's failing test.

    It stays 1 if another test failed, or if the line of counts has more failures than that one.
    """
    if returncode != 1:
        return returncode
    last = split_log(text)[1][-1:]
    counted = sum(failure_count(line) for line in last if is_counts_line(line))
    others = (status for test, status in statuses.items() if f"{canary.path}::" not in test)
    return 1 if counted > 1 or any(status in FAILING for status in others) else 0


def _defuse(line: str) -> str:
    return f"| {line} |" if _LINE_WITH_STATUS.fullmatch(line) else line


def _without_two(counts: str) -> str:
    """Return the line of counts with one passed and one failed test less."""
    for word in ("passed", "failed"):
        counts = re.sub(rf"\d+(?= {word})", lambda match: str(int(match[0]) - 1), counts, count=1)
    return re.sub(r"\b0 (failed|passed)(, )?", "", counts)
