"""Rows as they were published: an older revision's, the evaluation set's, and image names in every spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from swe_smith_rows import make_row, write_shard

from lightning_smith.contracts.task import Grade
from lightning_smith.core.errors import UserError
from lightning_smith.funnel.filters import branch, bug_in_tests, overlap, statement, test_count
from lightning_smith.funnel.filters.decisions import decide
from lightning_smith.funnel.overlap import edits, find_overlaps, real_repository
from lightning_smith.funnel.release_counts import count_release
from lightning_smith.release.columns import SCHEMA, check_schema, read_tasks
from lightning_smith.release.image_lists import needed
from lightning_smith.release.patches import edited_files

DATA = Path(__file__).parents[2] / "data"
OLD_ROW: dict[str, Any] = json.loads((DATA / "swe_smith" / "pandas_53652.json").read_text())
VERIFIED: list[dict[str, str]] = json.loads((DATA / "verified_patches.json").read_text())
KEY = "swesmith.x86_64.acme_1776_widget.0badcafe"
SPELLINGS = [f"swebench/{KEY}", f"jyangballin/{KEY}", "swesmith.x86_64.acme__widget.0badcafe"]


def test_a_row_of_the_first_release_is_told_from_the_pinned_ones(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([OLD_ROW]), tmp_path / "old.parquet")
    with pytest.raises(UserError, match=r"old\.parquet .*unknown column (base_commit|created_at)"):
        check_schema(tmp_path / "old.parquet")


def test_a_real_row_through_every_filter(tmp_path: Path) -> None:
    row = {name: OLD_ROW[name] for name in SCHEMA.names}
    shard = write_shard(tmp_path / "a.parquet", [row])
    assert [task.to_row() for task in read_tasks([shard])] == [row]
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    assert edited_files(row["patch"]) == {"pandas/core/indexes/base.py"}
    assert statement.reasons(batch) == [None]
    assert test_count.reasons(batch, 200) == [None]
    assert test_count.reasons(batch, 2) == ["too_many_tests"]
    assert bug_in_tests.reasons(batch, Grade.ALL) == [None]
    assert branch.reasons(batch, {row["image_name"]: {row["instance_id"]}}) == [None]
    found = count_release([shard])
    assert found.counts["rows"] == 1 and found.repositories_by_language == {"Python": 1}
    assert real_repository(row["repo"]) == "pandas-dev/pandas"


def test_the_evaluation_set_is_no_release(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(VERIFIED), tmp_path / "verified.parquet")
    with pytest.raises(UserError, match=r"verified\.parquet lacks the column"):
        check_schema(tmp_path / "verified.parquet")


def test_tasks_with_the_evaluation_sets_own_patches_are_all_found() -> None:
    """A snapshot of each repository whose bug lies exactly where the evaluation's repairs are."""
    evaluation = [edits(row["instance_id"], row["repo"], row["patch"]) for row in VERIFIED]
    training = [
        edits(f"t{n}", f"swesmith/{row['repo'].replace('/', '__')}.0badcafe", row["patch"])
        for n, row in enumerate(VERIFIED)
    ]
    overlaps = find_overlaps(training, evaluation)
    assert {item.repository for item in overlaps} == {row["repo"].lower() for row in VERIFIED}
    assert sum(item.evaluation_instances for item in overlaps) == len(VERIFIED)
    found = {name: "file" for item in overlaps for name in item.on_shared_files}
    assert set(found) == {item.instance_id for item in training}
    batch = pa.RecordBatch.from_pylist([{"instance_id": name} for name in sorted(found)])
    assert set(overlap.reasons(batch, found, "file")) == {"same_file"}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("listed_as", SPELLINGS)
def test_each_spelling_of_an_image_is_the_same_image(tmp_path: Path, spelling: str, listed_as: str) -> None:
    rows = [make_row(number, image_name=spelling) for number in range(3)]
    shard = write_shard(tmp_path / "a.parquet", rows)
    assert needed([shard]) == {KEY: spelling}
    assert count_release([shard]).counts["images"] == 1
    branches = {listed_as: {row["instance_id"] for row in rows[:2]}}
    decisions = decide(
        branch.NAME, [shard], branch.COLUMNS, lambda batch: branch.reasons(batch, branches), None
    )
    assert [decisions.reasons[row["instance_id"]] for row in rows] == [None, None, "not_in_image"]


def test_two_spellings_in_one_release_are_refused(tmp_path: Path) -> None:
    rows = [make_row(number, image_name=name) for number, name in enumerate(SPELLINGS[:2])]
    with pytest.raises(UserError, match=f"the images swebench/{KEY} and jyangballin/{KEY} share the key"):
        count_release([write_shard(tmp_path / "a.parquet", rows)])
