"""The filters, in their order, each a pure function of record batches.

A filter module has a NAME, the COLUMNS that it reads (or `columns(...)`), the REASONS for which it drops rows, and
`reasons(batch, ...)`: for each row of the batch the reason to drop it, or None to keep it.
"""

from __future__ import annotations

from lightning_smith.funnel.filters import (
    branch,
    bug_in_tests,
    fail_to_pass,
    gradable,
    overlap,
    statement,
    test_count,
    validated,
)

REASONS_BY_FILTER: dict[str, tuple[str, ...]] = {
    module.NAME: module.REASONS
    for module in (statement, branch, test_count, fail_to_pass, bug_in_tests, overlap, gradable, validated)
}
"""Every reason of every filter, in the order in which the ledger lists them."""
