"""How the tests of a task are run and read, and what besides the grader has to call it solved.

`ImageTests` does what an image says itself, as those of the miniature do; `smith.SmithHarness` does what SWE-smith's
profile of the repository says.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.grading.statuses import read_statuses, read_unittest
from lightning_smith.repositories.revisions import Revisions

_QUIET = ("-rA", "--color=no", "--tb=no", "--show-capture=no", "--maxfail=0")
TEST_OPTIONS = (*_QUIET, "--continue-on-collection-errors")
"""Added to an image's own test command: every test is listed with its error's message, what tests print is not in
the log, and a module that cannot be imported does not keep the others from running."""

PROFILE_OPTIONS = (*_QUIET, "-p", "no:randomly")
"""Added to the command of a profile that runs pytest. There a module that cannot be imported ends the run, as it
does in SWE-smith's harness."""

_DANGLING = re.compile(r"\s-k\s*$")
_NAME = re.compile(r"[\w-]+")
_MAX_NAMES_BYTES = 100_000
"""The kernel takes no argument of 128 KiB."""


@dataclass(frozen=True)
class TestPlan:
    """How the tests of one task are run.

    Attributes:
        command: shell script, at whose end paths may be added.
        paths: files that are added to it; none for the whole suite.
        test_files: files of the task's tests.
        pytest: whether pytest runs the tests. Else there are no canary tests.
        grade: which of the task's tests decide.
        timeout_s: of one run, as in `grading.run_tests`; None for that one's own.
    """

    __test__ = False  # pytest would take this for a class of tests

    command: str
    paths: tuple[str, ...]
    test_files: tuple[str, ...]
    pytest: bool = True
    grade: Grade = Grade.ALL
    timeout_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    harness: str = ""
    """Name and version of the second grader that must agree, if there is one."""

    def read(self, log: bytes, known: Collection[str]) -> dict[str, str]:
        """Status by test id."""
        return read_statuses(log, known) if self.pytest else read_unittest(log, known)

    def script(self, more: tuple[str, ...], tree: Collection[str]) -> str:
        """Return the command over its paths and `more` of them; a whole suite is left one, unless the command names
        files.
        """
        last = shlex.split(self.command.rpartition(";")[2])
        names_files = bool(self.paths) or any(word in tree for word in last)
        return " ".join([self.command, *map(shlex.quote, [*self.paths, *(more if names_files else ())])])


class TestPlans(Protocol):
    """Who knows how tasks are tested. Raise UserError for a task that it cannot test."""

    @property
    def versions(self) -> str:
        """Name and version of the harness that is asked, empty if there is none."""
        ...

    def plan(self, task: RolloutTask, image: Revisions, grade: Grade) -> TestPlan: ...

    def resolved(self, task: RolloutTask, plan: TestPlan, log: bytes) -> bool | None:
        """Return whether the harness that belongs to the plan counts the task as solved; None if there is none."""
        ...


class ImageTests:
    """TestPlans of images that say themselves how their tests are run."""

    versions = ""

    def plan(self, task: RolloutTask, image: Revisions, grade: Grade) -> TestPlan:
        if not image.test_command:
            raise UserError(
                f"the image {image.image_name} does not say how its tests are run: build it again, or set "
                "backends.tests to smith if its repository is one of SWE-smith's"
            )
        files = task.graded(grade).test_files
        command = shlex.join([*image.test_command, *TEST_OPTIONS])
        return TestPlan(
            command, files, files, grade=grade, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        )

    def resolved(self, task: RolloutTask, plan: TestPlan, log: bytes) -> None:
        return None


def with_names(command: str, tests: Collection[str], repo: str) -> str:
    """Return a profile's command whose `-k` lacks its names, with those of the tests; other commands as they are.

    Raise UserError if the names are no words, or too many: without them `-k` would swallow the argument after it.
    """
    if not _DANGLING.search(command):
        return command
    names = list(dict.fromkeys(test.rpartition("::")[2] for test in tests))
    joined = " or ".join(names)
    if not all(map(_NAME.fullmatch, names)) or not 0 < len(joined) <= _MAX_NAMES_BYTES:
        raise UserError(
            f"the test command of {repo} ends in -k, which the names of its {len(tests)} tests cannot follow"
        )
    return f"{command.rstrip()} {shlex.quote(joined)}"
