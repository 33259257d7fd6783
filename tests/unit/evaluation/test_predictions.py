"""Predictions: patches keep their bytes, ids are unique and known, subsets are stable."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.predictions import (
    Prediction,
    predictions_hash,
    read_predictions,
    write_predictions,
)
from lightning_smith.release.evaluation_set import TASK_COLUMNS, choose_tasks, read_tasks

# A hunk that ends in two blank context lines: stripped, git calls it corrupt.
BLANK_END = (
    b"diff --git a/merge.py b/merge.py\n--- a/merge.py\n+++ b/merge.py\n@@ -4,7 +4,8 @@ def merge(a, b):\n"
    b"     else:\n         # replace\n         check(a, b)\n-        result = a | b\n"
    b"+        result = a.copy()\n+        result.update(b)\n         return result\n \n \n"
)
BLANK_END_SHA256 = "ebeb6ea3e9fcf5a4f9c893db37d944aaab339d913e6ba41088dde280d07af65f"


def round_trip(tmp_path: Path, patch: bytes) -> bytes:
    path = tmp_path / "preds.jsonl"
    write_predictions(path, [Prediction("acme__widget-1", "m", patch)])
    return read_predictions(path, ["acme__widget-1"])["acme__widget-1"].patch


def test_blank_context_at_the_end_survives(tmp_path: Path):
    assert hashlib.sha256(BLANK_END).hexdigest() == BLANK_END_SHA256
    assert hashlib.sha256(round_trip(tmp_path, BLANK_END)).hexdigest() == BLANK_END_SHA256


@pytest.mark.parametrize(
    "patch",
    [
        b"",
        b"no newline at the end",
        b"+crlf\r\n+lone cr\r+form feed\x0c\n",
        "+\u2028 line and \u2029 paragraph and \x85 next line\n".encode(),
        b"+latin-1 \xe9\xff and a nul \x00\n",
        "+\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16").encode(),
    ],
    ids=["empty", "no-newline", "carriage-returns", "unicode-line-ends", "not-utf8", "astral"],
)
def test_bytes_survive(tmp_path: Path, patch: bytes):
    assert round_trip(tmp_path, patch) == patch
    raw = (tmp_path / "preds.jsonl").read_bytes()
    assert raw.isascii()
    assert raw.count(b"\n") == 1


def test_official_keys(tmp_path: Path):
    path = tmp_path / "preds.jsonl"
    write_predictions(path, [Prediction("b", "m", b"x\n"), Prediction("a", "m", b"")])
    rows = [json.loads(line) for line in path.read_text().split("\n") if line]
    assert rows == [
        {"instance_id": "a", "model_name_or_path": "m", "model_patch": ""},
        {"instance_id": "b", "model_name_or_path": "m", "model_patch": "x\n"},
    ]


def test_null_is_empty_and_absent_is_absent(tmp_path: Path):
    path = tmp_path / "preds.jsonl"
    path.write_text('{"instance_id": "a", "model_name_or_path": "m", "model_patch": null}\n')
    predictions = read_predictions(path, ["a", "b"])
    assert predictions["a"].empty
    assert "b" not in predictions


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"instance_id": "a", "model_name_or_path": "m", "model_patch": ""}\n' * 2, "two predictions for a"),
        ('{"instance_id": "z", "model_name_or_path": "m", "model_patch": ""}\n', "predicts z"),
        ('{"instance_id": "a", "model_name_or_path": "m", "model_patch": 3}\n', "is a int"),
        ('{"instance_id": "a", "patch": ""}\n', "model_patch"),
        ('{"instance_id": "a", "model_name_or_path": "m", "model_patch": "\\ud83d"}\n', "no valid text"),
    ],
)
def test_refused(tmp_path: Path, text: str, words: str):
    path = tmp_path / "preds.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_predictions(path, ["a"])


def test_hash_follows_patches_ids_and_model():
    def of(**patches: bytes) -> str:
        return predictions_hash({key: Prediction(key, "m", patch) for key, patch in patches.items()})

    assert of(a=b"1", b=b"2") == of(b=b"2", a=b"1")
    assert len({of(a=b"1", b=b"2"), of(a=b"2", b=b"1"), of(a=b"1"), of(a=b"1", b=b""), of()}) == 5
    assert predictions_hash({"a": Prediction("a", "other", b"1")}) != of(a=b"1")


def rows(*ids: str) -> list[dict[str, str]]:
    tests = {"FAIL_TO_PASS": '["t.py::a"]', "PASS_TO_PASS": "[]"}
    return [dict.fromkeys(TASK_COLUMNS, "") | tests | {"instance_id": key} for key in ids]


def test_subset_ignores_the_order_of_the_file():
    ids = [f"i{number:03d}" for number in range(50)]
    chosen = [row["instance_id"] for row in choose_tasks(rows(*ids), 10, seed=3)]
    backwards = [row["instance_id"] for row in choose_tasks(rows(*reversed(ids)), 10, seed=3)]
    assert len(set(chosen)) == 10
    assert chosen == sorted(chosen)
    assert backwards == chosen[::-1]
    assert chosen != [row["instance_id"] for row in choose_tasks(rows(*ids), 10, seed=4)]
    assert len(choose_tasks(rows(*ids), None, seed=0)) == 50
    with pytest.raises(UserError, match="51 held-out instances were asked for and the data set has 50"):
        choose_tasks(rows(*ids), 51, seed=0)


def test_tasks_file(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "heldout.parquet"
    with pytest.raises(UserError, match="does not exist"):
        read_tasks(path)
    pq.write_table(pa.Table.from_pylist(rows("a", "b")), path)
    assert [row["instance_id"] for row in read_tasks(path)] == ["a", "b"]
    pq.write_table(pa.Table.from_pylist(rows("a", "a")), path)
    with pytest.raises(UserError, match="a twice"):
        read_tasks(path)
    pq.write_table(pa.Table.from_pylist(rows("a")).drop_columns(["eval_script"]), path)
    with pytest.raises(UserError, match="lacks the column eval_script"):
        read_tasks(path)
    path.write_bytes(b"PAR1 cut")
    with pytest.raises(UserError, match="not a readable parquet file"):
        read_tasks(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"FAIL_TO_PASS": '"t.py::a"'}, r"row 2 \(b\) has a FAIL_TO_PASS that is no list of test ids"),
        ({"PASS_TO_PASS": '{"t.py::a": 1}'}, r"row 2 \(b\) has a PASS_TO_PASS that is no list of test ids"),
        ({"FAIL_TO_PASS": "[1]"}, r"row 2 \(b\) has a FAIL_TO_PASS that is no list of test ids"),
        ({"FAIL_TO_PASS": "[]"}, r"row 2 \(b\) has no FAIL_TO_PASS test, so any patch would resolve it"),
    ],
)
def test_rows_that_anything_would_resolve_are_refused(tmp_path: Path, changes: dict[str, str], message: str):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    good, bad = rows("a", "b")
    pq.write_table(pa.Table.from_pylist([good, {**bad, **changes}]), tmp_path / "heldout.parquet")
    with pytest.raises(UserError, match=message):
        read_tasks(tmp_path / "heldout.parquet")
