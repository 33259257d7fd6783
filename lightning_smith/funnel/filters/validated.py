"""Drops rows whose gold patch does not pass or whose bug does not fail, in test runs of our own.

Off in the published configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lightning_smith.contracts.validation import BOTH_WRONG, EMPTY_PASSES, FLAKY, GOLD_FAILS, GRADER_ERROR
from lightning_smith.core.errors import UserError

NAME = "validated"
COLUMNS = ("instance_id",)
REASONS = (GRADER_ERROR, FLAKY, BOTH_WRONG, GOLD_FAILS, EMPTY_PASSES)


def reasons(batch: pa.RecordBatch, verdicts: Mapping[str, str | None]) -> list[str | None]:
    """One of REASONS for each row to drop; `verdicts` as `validation.verdicts` returns them.

    Raise UserError for a row that was not validated.
    """
    found: list[str | None] = []
    for instance_id in batch.column("instance_id").to_pylist():
        if instance_id not in verdicts:
            raise UserError(
                f"instance {instance_id} was not validated: its shards' logs are of another run, so run "
                "scripts/funnel/validate_tasks.py again"
            )
        found.append(verdicts[instance_id])
    return found
