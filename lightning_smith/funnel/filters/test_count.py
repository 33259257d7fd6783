"""Drops rows that need more tests than a rollout can afford to run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

NAME = "test_count"
COLUMNS = ("FAIL_TO_PASS", "PASS_TO_PASS")
TOO_MANY = "too_many_tests"
REASONS = (TOO_MANY,)


def reasons(batch: pa.RecordBatch, limit: int) -> list[str | None]:
    """`too_many_tests` for each row with more than `limit` distinct tests in both lists together.

    The lists' strings may be dictionary-encoded.
    """
    columns = [_Lists(batch.column(name)) for name in COLUMNS]
    # Most rows are decided by their lengths alone.
    long = np.flatnonzero(sum(column.sizes for column in columns) > limit)
    found: list[str | None] = [None] * batch.num_rows
    for row in long.tolist():
        if _more_distinct_than(limit, columns, row):
            found[row] = TOO_MANY
    return found


class _Lists:
    """A list column of a batch, row by row."""

    def __init__(self, column: pa.ListArray) -> None:
        offsets = column.offsets.to_numpy()
        self._starts, self.sizes = offsets[:-1], np.diff(offsets)
        """`sizes` has the length of each row's list."""
        self._values, self._numbers = column.values, None
        if isinstance(column.values, pa.DictionaryArray):
            encoded = column.values.dictionary.dictionary_encode()  # which may hold a string twice
            self._values = encoded.dictionary
            self._numbers = encoded.indices.to_numpy()[column.values.indices.to_numpy()]

    def distinct(self, row: int, count: int) -> np.ndarray | pa.Array:
        """Return the distinct ones of the first `count` tests of a row, as numbers where they are encoded."""
        start, size = self._starts[row], min(self.sizes[row], count)
        if self._numbers is not None:
            return np.unique(self._numbers[start : start + size])
        return self._values.slice(start, size).unique()

    def strings(self, distinct: np.ndarray | pa.Array) -> set[str]:
        """Return what `distinct` found, as strings."""
        found = self._values.take(pa.array(distinct)) if isinstance(distinct, np.ndarray) else distinct
        return set(found.to_pylist())


def _more_distinct_than(limit: int, columns: list[_Lists], row: int) -> bool:
    """Return whether more than `limit` tests are distinct; of 22,000, the first limit + 1 nearly always tell."""
    count, longest = limit + 1, max(column.sizes[row] for column in columns)
    while True:
        distinct = [column.distinct(row, count) for column in columns]
        if max(map(len, distinct)) > limit:
            return True
        if count >= longest:
            found = (column.strings(tests) for column, tests in zip(columns, distinct, strict=True))
            return len(set().union(*found)) > limit
        count *= 2
