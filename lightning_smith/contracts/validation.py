"""What became of a task's gold patch and of no patch at all, in several runs: records, their log, the verdict.

One JSON line a run of one patch:

    {"instance_id": ..., "patch": "gold", "run": 0, "outcome": "solved", "failed": 0, "failed_tests": [], ...}
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from lightning_smith.contracts.outcome import INVALID_OUTCOMES, Outcome
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import append_jsonl, cut_torn_line, read_jsonl

GRADER_ERROR = "grader_error"
"""Some of its tests could not be run; says nothing about the task."""
FLAKY = "flaky"
"""Runs of the same patch disagree about a test."""
BOTH_WRONG = "gold_fails_empty_passes"
GOLD_FAILS = "gold_fails"
EMPTY_PASSES = "empty_passes"


class Patch(StrEnum):
    """What is validated of a task."""

    GOLD = "gold"
    """The reverse of the row's bug: must pass."""
    EMPTY = "empty"
    """No change at all: must not pass."""


ValidationKey = tuple[str, str, int]
"""(instance_id, patch, run)"""


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """One run of one patch of one task."""

    instance_id: str
    patch: Patch
    run: int
    outcome: Outcome
    """SOLVED, UNSOLVED, TAMPERED (the run cannot be believed), or GRADER_ERROR."""
    inputs_sha256: str
    """Of all that the outcome depends on; a record with another one is of another task, image or limit."""
    image_digest: str
    failed: int | None
    """How many of the task's tests did not pass; None if none ran."""
    failed_tests: tuple[str, ...]
    """The first of them, as an example."""
    passed_sha256: str | None
    """Of the ids that passed; None if no test ran or the run was ended."""
    wall_s: float
    error: str | None = None

    @property
    def key(self) -> ValidationKey:
        return self.instance_id, self.patch.value, self.run

    @property
    def valid(self) -> bool:
        """Whether the record says something about the task."""
        return self.outcome not in INVALID_OUTCOMES

    def to_dict(self) -> dict[str, Any]:
        """Plain values for one JSON line."""
        return {**asdict(self), "patch": self.patch.value, "outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], where: str = "a record") -> ValidationRecord:
        """Return the inverse of `to_dict`; `where` names the record in a UserError."""
        if set(row) != {field.name for field in fields(cls)}:
            raise UserError(f"{where} is no record of a validation: the file is of another version")
        try:
            values = {"patch": Patch(row["patch"]), "outcome": Outcome(row["outcome"])}
            return cls(**{**row, **values, "failed_tests": tuple(row["failed_tests"])})
        except (TypeError, ValueError) as error:
            raise UserError(f"{where} is malformed: {error}") from None


class ValidationLog:
    """Append-only JSON lines, each flushed to the disk before `append` returns.

    A line torn by a kill is cut when the log is opened. Of several records of one key the last one counts:
    what had no verdict, or was of other inputs, is run again. Threads of one process may append.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._records: dict[ValidationKey, ValidationRecord] = {}
        if path.exists():
            cut_torn_line(path)
            for number, row in enumerate(read_jsonl(path), start=1):
                record = ValidationRecord.from_dict(row, f"{path} row {number}")
                self._records[record.key] = record

    def append(self, record: ValidationRecord) -> None:
        """Write a record; it is on the disk when this returns."""
        with self._lock:
            append_jsonl(self.path, [record.to_dict()])
            self._records[record.key] = record

    def get(self, key: ValidationKey) -> ValidationRecord | None:
        """Return the record of a key, whether or not it is valid."""
        return self._records.get(key)

    def done(self, key: ValidationKey, inputs_sha256: str) -> bool:
        """Return whether a key has a valid record of these inputs."""
        record = self._records.get(key)
        return record is not None and record.valid and record.inputs_sha256 == inputs_sha256


def read_records(paths: Iterable[Path]) -> list[ValidationRecord]:
    """Return records of finished logs. Raise UserError if a run is in them twice."""
    found: dict[ValidationKey, ValidationRecord] = {}
    for path in paths:
        for number, row in enumerate(read_jsonl(path), start=1):
            record = ValidationRecord.from_dict(row, f"{path} row {number}")
            if record.key in found:
                raise UserError(f"{path} holds {record.key} a second time: it would count twice")
            found[record.key] = record
    return list(found.values())


def verdicts(records: Iterable[ValidationRecord], runs: int) -> dict[str, str | None]:
    """For each task the reason to drop it, or None if it is as it should be in each of its runs.

    Raise UserError for a task that does not have exactly `runs` runs of each patch.
    """
    by_task: defaultdict[str, list[ValidationRecord]] = defaultdict(list)
    for record in records:
        by_task[record.instance_id].append(record)
    wanted = {(patch.value, run) for patch in Patch for run in range(runs)}
    for instance_id, found in by_task.items():
        if {(record.patch.value, record.run) for record in found} != wanted:
            raise UserError(
                f"{instance_id} was not validated in {runs} runs: the logs are of another configuration, so run "
                "scripts/funnel/validate_tasks.py again"
            )
    return {instance_id: verdict(found) for instance_id, found in by_task.items()}


def verdict(records: Iterable[ValidationRecord]) -> str | None:
    """Return the reason to drop one task, from all its records.

    Valid runs that disagree say `flaky` even where others have no verdict. Runs of one patch agree if they have
    the same outcome and the same tests passed.
    """
    by_patch: dict[Patch, list[ValidationRecord]] = {patch: [] for patch in Patch}
    for record in records:
        by_patch[record.patch].append(record)
    valid = {patch: [record for record in found if record.valid] for patch, found in by_patch.items()}
    if any(len({(record.outcome, record.passed_sha256) for record in found}) > 1 for found in valid.values()):
        return FLAKY
    if any(len(valid[patch]) < len(by_patch[patch]) or not valid[patch] for patch in Patch):
        return GRADER_ERROR
    passes = {patch: found[0].outcome is Outcome.SOLVED for patch, found in valid.items()}
    return {
        (True, False): None,
        (True, True): EMPTY_PASSES,
        (False, False): GOLD_FAILS,
        (False, True): BOTH_WRONG,
    }[passes[Patch.GOLD], passes[Patch.EMPTY]]
