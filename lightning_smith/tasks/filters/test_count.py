"""Drops rows that need more tests than a rollout can afford to run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NAME = "test_count"
COLUMNS = ("FAIL_TO_PASS", "PASS_TO_PASS")
TOO_MANY = "too_many_tests"
REASONS = (TOO_MANY,)


def reasons(batch: pa.RecordBatch, limit: int) -> list[str | None]:
    """`too_many_tests` for each row with more than `limit` distinct tests in both lists together."""
    columns = [batch.column(name) for name in COLUMNS]
    starts, sizes = zip(*(_extents(column) for column in columns), strict=True)
    # Most rows are decided by their lengths alone.
    long = np.flatnonzero(sum(sizes) > limit)
    found: list[str | None] = [None] * batch.num_rows
    for row in long.tolist():
        lists = [
            column.values.slice(start[row], size[row])
            for column, start, size in zip(columns, starts, sizes, strict=True)
        ]
        if _more_distinct_than(limit, pa.chunked_array(lists)):
            found[row] = TOO_MANY
    return found


def _extents(column: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Where each row's list starts among the column's values, and how long it is."""
    offsets = column.offsets.to_numpy()
    return offsets[:-1], np.diff(offsets)


def _more_distinct_than(limit: int, tests: pa.ChunkedArray) -> bool:
    """Whether more than `limit` tests are distinct; of 22,000, the first limit + 1 nearly always tell."""
    count = limit + 1
    while count < len(tests):
        if _distinct(tests.slice(0, count)) > limit:
            return True
        count *= 2
    return _distinct(tests) > limit


def _distinct(tests: pa.ChunkedArray) -> int:
    return pc.call_function("count_distinct", [tests]).as_py()
