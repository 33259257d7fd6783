"""Drops rows whose bug lies in a file that grades them: the grader puts that file back, so nothing can repair it.

Such a file may be one of sources that holds a doctest. Which tests grade a row is `agent.grade`. Also drops rows whose
patch cannot be read, since nothing can be said about them. The published recipe has no such filter; its own run before.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lightning_smith.contracts.task import Grade, file_of
from lightning_smith.grading.protection import unrepairable
from lightning_smith.release.patches import UnreadablePatchError, edited_files

NAME = "bug_in_tests"
IN_TEST_FILE = "bug_in_test_file"
UNREADABLE = "unreadable_patch"
REASONS = (UNREADABLE, IN_TEST_FILE)


def columns(grade: Grade) -> tuple[str, ...]:
    """Return what `reasons` reads: of PASS_TO_PASS only tests in the files of FAIL_TO_PASS decide, or all."""
    return ("patch", "FAIL_TO_PASS", *(("PASS_TO_PASS",) if grade is Grade.ALL else ()))


def reasons(batch: pa.RecordBatch, grade: Grade) -> list[str | None]:
    """One of REASONS for each row to drop, None for each to keep."""
    rows = zip(*(batch.column(name).to_pylist() for name in columns(grade)), strict=True)
    return [why_dropped(patch, *tests) for patch, *tests in rows]


def why_dropped(patch: str, *tests: Sequence[str]) -> str | None:
    """Return the reason to drop a row with this patch, whose tests that decide are in the files of these."""
    try:
        edited = edited_files(patch)
    except UnreadablePatchError:
        return UNREADABLE
    files = {file_of(test) for ids in tests for test in ids}
    return IN_TEST_FILE if unrepairable(edited, files) else None
