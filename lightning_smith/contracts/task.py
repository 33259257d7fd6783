"""The tasks of a stage: rows with SWE-smith's columns, found by instance id in a JSON-lines file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import parse_row

WALL_FACTOR = 4
"""Tests are bounded in processor time, so that a busy machine does not decide what a patch is worth; their wall clock
at so many times that."""


class Grade(StrEnum):
    """Which of a task's tests decide whether it is solved."""

    ALL = "all"
    FAIL_TO_PASS = "fail_to_pass"
    """FAIL_TO_PASS, and of PASS_TO_PASS what is in the same files."""


@dataclass(frozen=True)
class RolloutTask:
    """What a rollout needs of a row; the tests may be absent where the harness grades elsewhere."""

    instance_id: str
    """Also the branch of the task in its image."""
    image_name: str
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    repo: str = ""
    """As SWE-smith's profiles are called."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "a task") -> RolloutTask:
        """Read a row; test ids may be lists or JSON text of lists. `where` names it in a UserError."""
        try:
            instance_id, image_name = _text(row["instance_id"]), _text(row["image_name"])
            statement, repo = _text(row.get("problem_statement") or ""), _text(row.get("repo") or "")
            fail_to_pass, pass_to_pass = test_ids(row["FAIL_TO_PASS"]), test_ids(row["PASS_TO_PASS"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where} is not a SWE-smith row ({type(error).__name__} {error})") from None
        if not instance_id or "/" in instance_id or instance_id.startswith("."):
            raise UserError(f"{where} has the instance id {instance_id!r}, which is no name of a folder")
        return cls(instance_id, image_name, statement, fail_to_pass, pass_to_pass, repo)

    @property
    def tests(self) -> tuple[str, ...]:
        """Ids of all tests that must pass."""
        return self.fail_to_pass + self.pass_to_pass

    @property
    def test_files(self) -> tuple[str, ...]:
        """Files of the tests that must pass, in the order in which the ids name them first."""
        return tuple(dict.fromkeys(map(file_of, self.tests)))

    def graded(self, grade: Grade) -> RolloutTask:
        """Return the task with the tests alone that decide."""
        if grade is Grade.ALL:
            return self
        files = set(map(file_of, self.fail_to_pass))
        return replace(self, pass_to_pass=tuple(test for test in self.pass_to_pass if file_of(test) in files))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{json.dumps(value)[:40]} stands where text is wanted")
    return value


def file_of(test: str) -> str:
    """Return the file of a pytest id: what stands before the first `::`; an id without one is its own."""
    return test.partition("::")[0]


def test_ids(value: Any) -> tuple[str, ...]:
    """Test ids of a row: a list, or JSON text of one. ValueError for whatever else, such as JSON text of a string."""
    try:
        ids = json.loads(value) if isinstance(value, str) else value
    except RecursionError:
        ids = None  # brackets without end
    if not isinstance(ids, list | tuple) or not all(isinstance(test, str) for test in ids):
        raise ValueError("its test ids are no list of strings")
    return tuple(ids)


test_ids.__test__ = False  # pytest would take it for a test


class TaskFile:
    """A JSON-lines file of tasks, indexed once: rows can be long, and one rollout needs one of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, int] = {}
        self.image_names: set[str] = set()
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: run the rule that makes it first") from None
        except IsADirectoryError:
            raise UserError(f"{path} is a folder: tasks are read from a file of JSON lines") from None
        with file:
            place = 0
            for number, line in enumerate(file, start=1):
                if line.strip():
                    task = RolloutTask.from_row(parse_row(line, path, number), f"{path} line {number}")
                    self._places[task.instance_id] = place
                    self.image_names.add(task.image_name)
                place += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, instance_id: str) -> RolloutTask:
        """UserError if there is no such task."""
        if instance_id not in self._places:
            raise UserError(f"{self._path} has no task {instance_id}")
        with self._path.open("rb") as file:
            file.seek(self._places[instance_id])
            return RolloutTask.from_row(
                parse_row(file.readline(), self._path, 0), f"{instance_id} in {self._path}"
            )
