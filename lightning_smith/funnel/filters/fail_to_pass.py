"""Drops rows without a FAIL_TO_PASS test: nothing tells their bug from its repair, so any patch would be rewarded.

The published recipe does not say what becomes of them; its filters run before this one.
"""

from __future__ import annotations

import pyarrow as pa

NAME = "fail_to_pass"
COLUMNS = ("FAIL_TO_PASS",)
NO_FAIL_TO_PASS = "no_fail_to_pass"
REASONS = (NO_FAIL_TO_PASS,)


def reasons(batch: pa.RecordBatch) -> list[str | None]:
    """`no_fail_to_pass` for each row to drop, None for each to keep."""
    lengths = batch.column("FAIL_TO_PASS").value_lengths().to_pylist()
    return [None if length else NO_FAIL_TO_PASS for length in lengths]
