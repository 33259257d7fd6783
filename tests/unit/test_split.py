"""Training and validation share no task and no change."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.errors import UserError
from lightning_smith.files import read_json, read_jsonl, write_jsonl
from lightning_smith.probe.split import changes, refuse_overlap, related, split
from scripts import split as script

HEADER = "diff --git a/core.py b/core.py\nindex 1111111..2222222 100644\n--- a/core.py\n+++ b/core.py\n"
CLAMP = (
    "@@ -1,3 +1,3 @@ def a():\n def clamp(x, lo, hi):\n-    return min(x, hi)\n+    return min(x, lo)\n \n"
)
WIDTH = "@@ -9,2 +9,2 @@\n-    width = 1\n+    width = 2\n     return width\n"


def row(name: str, patch: str) -> dict[str, Any]:
    return {"instance_id": name, "patch": patch, "repo": "acme", "problem_statement": "a\u2028b"}


def other(number: int) -> str:
    hunk = f"@@ -{number},2 +{number},2 @@\n-    value = {number}\n+    value = {number + 1}\n"
    return f"{HEADER}{hunk}     return value\n"


RELATED = [
    row("pm__1", HEADER + CLAMP),
    row(
        "combine__2",
        HEADER + CLAMP.replace("-1,3 +1,3", "-7,3 +7,3").replace("x, lo, hi", "x, low, hi") + WIDTH,
    ),
    row("pm__3", HEADER.replace("1111111", "3333333") + CLAMP),
]
ROWS = [*RELATED, *(row(f"free__{i}", other(10 * i)) for i in range(12))]


def test_changes_ignore_place_and_context() -> None:
    assert changes(RELATED[0]["patch"]) == changes(RELATED[2]["patch"])
    assert changes(RELATED[0]["patch"]) < changes(RELATED[1]["patch"])
    assert not changes(other(1)) & changes(other(2))


def test_same_lines_of_another_file_are_another_change() -> None:
    assert not changes(HEADER + CLAMP) & changes(HEADER.replace("core", "base") + CLAMP)


@pytest.mark.parametrize(
    "patch",
    [
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n",
        "diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZPo000311ONa4\n",
    ],
)
def test_file_without_text_changes_is_one_change(patch: str) -> None:
    assert len(changes(patch)) == 1


def test_removed_line_that_looks_like_a_header_is_a_change() -> None:
    patch = HEADER + "@@ -1,2 +1,1 @@\n--- a/core.py\n x\n\\ No newline at end of file\n"
    assert changes(patch) != changes(HEADER + "@@ -1,2 +1,1 @@\n--- a/base.py\n x\n")


def test_chain_is_one_group() -> None:
    groups = related({entry["instance_id"]: entry["patch"] for entry in ROWS})
    assert ["combine__2", "pm__1", "pm__3"] in groups and len(groups) == 13


@pytest.mark.parametrize("seed", range(20))
def test_sides_are_disjoint_whatever_the_seed(seed: int) -> None:
    result = split(ROWS, 5, seed)
    names = [{entry["instance_id"] for entry in side} for side in (result.train, result.validation)]
    assert len(names[1]) == 5 and names[0] | names[1] == {entry["instance_id"] for entry in ROWS}
    for one, two in itertools.product(result.train, result.validation):
        assert not changes(one["patch"]) & changes(two["patch"])
    refuse_overlap(result.train, result.validation)
    assert result.groups == [["combine__2", "pm__1", "pm__3"]]
    assert split(ROWS[::-1], 5, seed) == result


def test_seed_moves_tasks() -> None:
    assert len({json.dumps(split(ROWS, 5, seed).validation) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("rows", "validation", "error"),
    [
        ([*ROWS, row("pm__1", other(999))], 5, "pm__1 was selected twice"),
        (ROWS, 15, "15 of 15 selected tasks cannot be held aside"),
        (RELATED, 1, "cannot be held aside"),
    ],
)
def test_splits_that_are_refused(rows: list[dict[str, Any]], validation: int, error: str) -> None:
    with pytest.raises(UserError, match=error):
        split(rows, validation, 1)


def test_overlap_is_named() -> None:
    with pytest.raises(UserError, match="pm__3 shares a change with pm__1"):
        refuse_overlap([RELATED[0]], [RELATED[2]])


def test_script_writes_full_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "candidates.jsonl", [*ROWS, row("unchosen", other(500))])
    table = "".join(f"{entry['instance_id']}\t1\n" for entry in ROWS) + "unchosen\t0\n"
    (tmp_path / "selection.tsv").write_text("instance_id\tchosen\n" + table)
    flags = ["--selection", tmp_path / "selection.tsv", "--tasks", tmp_path / "candidates.jsonl"]
    flags += ["--validation", 4, "--seed", 1, "--summary", tmp_path / "split.json"]
    flags += ["--train", tmp_path / "train.jsonl", "--val", tmp_path / "val.jsonl"]
    script.main([str(flag) for flag in flags])
    train, validation = (list(read_jsonl(tmp_path / f"{side}.jsonl")) for side in ("train", "val"))
    assert len(train) == 11 and len(validation) == 4
    assert all(entry in ROWS for entry in train + validation)
    assert read_json(tmp_path / "split.json")["train"]["tasks"] == 11
    (tmp_path / "candidates.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(UserError, match="lacks"):
        script.main([str(flag) for flag in flags])
