"""Drops rows whose bug lies in a file that grades them: the harness restores that file, so nothing can repair it.

Also rows whose patch cannot be read, since nothing can be said about them. Off in the published configuration.
"""

from __future__ import annotations

import pyarrow as pa

from lightning_smith.tasks.patches import UnreadablePatchError, edited_files

NAME = "bug_in_tests"
COLUMNS = ("patch", "FAIL_TO_PASS")
IN_TEST_FILE = "bug_in_test_file"
UNREADABLE = "unreadable_patch"
REASONS = (UNREADABLE, IN_TEST_FILE)


def reasons(batch: pa.RecordBatch) -> list[str | None]:
    """One of REASONS for each row to drop, None for each to keep."""
    patches, tests = (batch.column(name).to_pylist() for name in COLUMNS)
    return [why_dropped(patch, ids) for patch, ids in zip(patches, tests, strict=True)]


def why_dropped(patch: str, fail_to_pass: list[str]) -> str | None:
    """The reason to drop a row with this patch and these tests."""
    try:
        edited = edited_files(patch)
    except UnreadablePatchError:
        return UNREADABLE
    return IN_TEST_FILE if edited & {test_file(test) for test in fail_to_pass} else None


def test_file(test: str) -> str:
    """The file of a pytest id: what stands before the first `::`; an id without one is its own."""
    return test.partition("::")[0]


test_file.__test__ = False  # pytest would take it for a test
