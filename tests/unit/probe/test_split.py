"""Training and validation share no task and no change."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl, write_jsonl
from lightning_smith.probe.select import read_sides
from lightning_smith.probe.split import changes, refuse_overlap, split
from scripts.probe import split as script

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
VALIDATE = {"pm__3", "free__2", "free__7"}
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


@pytest.mark.parametrize("seed", range(20))
def test_sides_are_disjoint_whatever_the_seed(seed: int) -> None:
    mixed = random.Random(seed).sample(ROWS, len(ROWS))
    result = split(mixed[5:], mixed[:5], seed)
    names = [{entry["instance_id"] for entry in side} for side in (result.train, result.validation)]
    assert names[1] == {entry["instance_id"] for entry in mixed[:5]}, "all that was drawn validates"
    assert names[0] | names[1] | result.left_out.keys() == {entry["instance_id"] for entry in ROWS}
    for one, two in itertools.product(result.train, result.validation):
        assert not changes(one["patch"]) & changes(two["patch"])
    refuse_overlap(result.train, result.validation)
    related = {entry["instance_id"] for entry in RELATED}
    held = related & names[1]
    assert result.left_out.keys() == (related - held if held else set())
    assert set(result.left_out.values()) <= held
    assert split(mixed[:4:-1], mixed[4::-1], seed) == result


def test_seed_moves_rows() -> None:
    orders = {json.dumps(split(ROWS[3:10], ROWS[10:], seed).train) for seed in range(5)}
    assert len(orders) == 5


@pytest.mark.parametrize(
    ("train", "validation", "error"),
    [
        ([*ROWS[:5], row("pm__1", other(999))], ROWS[5:], "pm__1 was selected twice"),
        (ROWS[:5], ROWS[4:], "free__1 was selected twice"),
        (RELATED[1:], RELATED[:1], "each of the 2 training tasks shares a change"),
        ([], ROWS[:2], "no task was selected for training"),
        ([{**ROWS[0], "patch": None}], ROWS[1:2], "task .* has no patch"),
    ],
)
def test_splits_that_are_refused(
    train: list[dict[str, Any]], validation: list[dict[str, Any]], error: str
) -> None:
    with pytest.raises(UserError, match=error):
        split(train, validation, 1)


def test_overlap_is_named() -> None:
    with pytest.raises(UserError, match="pm__3 shares a change with pm__1"):
        refuse_overlap([RELATED[0]], [RELATED[2]])


def test_script_writes_full_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "candidates.jsonl", [*ROWS, row("unchosen", other(500))])
    sides = {entry["instance_id"]: "train" for entry in ROWS} | dict.fromkeys(VALIDATE, "validation")
    table = "".join(f"{name}\t{side}\n" for name, side in {**sides, "unchosen": "no"}.items())
    (tmp_path / "selection.tsv").write_text("instance_id\tchosen\n" + table)
    flags = ["--selection", tmp_path / "selection.tsv", "--tasks", tmp_path / "candidates.jsonl"]
    flags += ["--seed", 1, "--summary", tmp_path / "split.json"]
    flags += ["--train", tmp_path / "train.jsonl", "--val", tmp_path / "val.jsonl"]
    script.main([str(flag) for flag in flags])
    train, validation = (list(read_jsonl(tmp_path / f"{side}.jsonl")) for side in ("train", "val"))
    assert len(train) == 10 and {entry["instance_id"] for entry in validation} == VALIDATE
    assert all(entry in ROWS for entry in train + validation)
    summary = read_json(tmp_path / "split.json")
    assert (summary["train"]["tasks"], summary["validation"]["tasks"]) == (10, 3)
    assert summary["left_out"] == {"combine__2": "pm__3", "pm__1": "pm__3"}
    (tmp_path / "candidates.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(UserError, match="lacks"):
        script.main([str(flag) for flag in flags])


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("instance_id\tchosen\na\ttrain\npm__1\t1\n", 3),
        ("instance_id\tchosen\na\n", 2),
        ("instance_id\tsolved\na\t4\n", 2),
        ("chosen\ntrain\n", 2),
    ],
)
def test_a_table_that_says_nothing_of_a_row_is_refused(tmp_path: Path, table: str, line: int) -> None:
    (tmp_path / "selection.tsv").write_text(table)
    with pytest.raises(UserError, match=rf"selection.tsv line {line}: .* run select_by_difficulty again"):
        read_sides(tmp_path / "selection.tsv")


def test_a_table_from_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "selection.tsv").write_bytes(b"instance_id\tchosen\r\na\ttrain\r\nb\tvalidation\r\n")
    assert read_sides(tmp_path / "selection.tsv") == {"train": ["a"], "validation": ["b"], "no": []}
