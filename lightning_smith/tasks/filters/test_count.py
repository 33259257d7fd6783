"""Drops rows that need more tests than a rollout can afford to run."""

from __future__ import annotations

import pyarrow as pa

NAME = "test_count"
COLUMNS = ("FAIL_TO_PASS", "PASS_TO_PASS")
TOO_MANY = "too_many_tests"
REASONS = (TOO_MANY,)


def reasons(batch: pa.RecordBatch, limit: int) -> list[str | None]:
    """`too_many_tests` for each row with more than `limit` distinct tests in both lists together."""
    lists = [batch.column(name) for name in COLUMNS]
    lengths = [column.value_lengths().to_pylist() for column in lists]
    found: list[str | None] = []
    for row, sizes in enumerate(zip(*lengths, strict=True)):
        # Most rows are decided by their lengths; only long ones are decoded to count duplicates once.
        if sum(sizes) <= limit:
            found.append(None)
            continue
        distinct = {test for column in lists for test in column[row].as_py()}
        found.append(TOO_MANY if len(distinct) > limit else None)
    return found
