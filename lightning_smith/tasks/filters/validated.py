"""Drops rows whose gold patch does not pass or whose bug does not fail, in test runs of our own.

Off in the published configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lightning_smith.errors import UserError

NAME = "validated"
COLUMNS = ("instance_id",)
GRADER_ERROR = "grader_error"
"""Some of its tests could not be run; says nothing about the task."""
FLAKY = "flaky"
"""Runs of the same patch disagree about a test."""
BOTH_WRONG = "gold_fails_empty_passes"
GOLD_FAILS = "gold_fails"
EMPTY_PASSES = "empty_passes"
REASONS = (GRADER_ERROR, FLAKY, BOTH_WRONG, GOLD_FAILS, EMPTY_PASSES)


def reasons(batch: pa.RecordBatch, verdicts: Mapping[str, str | None]) -> list[str | None]:
    """One of REASONS for each row to drop; `verdicts` as `validation.verdicts` returns them.

    Raises UserError for a row that was not validated.
    """
    found: list[str | None] = []
    for instance_id in batch.column("instance_id").to_pylist():
        if instance_id not in verdicts:
            raise UserError(
                f"instance {instance_id} was not validated: its shards' logs are of another run, so run "
                "scripts/validate_tasks.py again"
            )
        found.append(verdicts[instance_id])
    return found
