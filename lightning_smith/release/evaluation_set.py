"""Rows of the evaluation set, SWE-bench Verified or the miniature's own, and which of them are evaluated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_smith.contracts.task import test_ids
from lightning_smith.core.errors import UserError

TASK_COLUMNS = (
    "repo",
    "instance_id",
    "base_commit",
    "patch",
    "problem_statement",
    "version",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "eval_script",
    "log_parser",
    "eval_type",
    "image",
)
"""Columns of swebench's version 5 format that the evaluation reads; older files lack the last four."""


def read_tasks(path: Path | str) -> list[dict[str, Any]]:
    """Return rows of the held-out parquet, in its order.

    Raise UserError if a column is absent, an id occurs twice, or a row's tests are no lists of ids, of which
    FAIL_TO_PASS has one at least: the harness counts an instance without any as resolved.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: run the rule that makes it first") from None
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path} is not a readable parquet file ({error}): make or download it again"
        ) from None
    if absent := [column for column in TASK_COLUMNS if column not in table.column_names]:
        raise UserError(
            f"{path} lacks the column {absent[0]}: swebench 5 needs its version 5 format "
            "(SWE-bench/SWE-bench_Verified, not princeton-nlp/SWE-bench_Verified)"
        )
    rows = table.to_pylist()
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if row["instance_id"] in seen:
            raise UserError(f"{path} holds {row['instance_id']} twice")
        seen.add(row["instance_id"])
        for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
            try:
                empty = not test_ids(row[column])
            except ValueError:
                raise UserError(
                    f"{path} row {number} ({row['instance_id']}) has a {column} that is no list of test ids: "
                    "make or download it again"
                ) from None
            if empty and column == "FAIL_TO_PASS":
                raise UserError(
                    f"{path} row {number} ({row['instance_id']}) has no FAIL_TO_PASS test, so any patch would "
                    "resolve it: leave the row out"
                )
    return rows


def choose_tasks(rows: Sequence[dict[str, Any]], count: int | None, seed: int) -> list[dict[str, Any]]:
    """`count` rows drawn without replacement (all if None), in the order of `rows`; the same seed draws the
    same.

    Drawing from the sorted ids makes the choice independent of the file's order. Raise UserError if there
    are fewer.
    """
    if count is None:
        return list(rows)
    if not 0 < count <= len(rows):
        raise UserError(f"{count} held-out instances were asked for and the data set has {len(rows)}")
    chosen = set(random.Random(seed).sample(sorted(row["instance_id"] for row in rows), count))
    return [row for row in rows if row["instance_id"] in chosen]
