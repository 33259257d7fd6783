"""Files are whole or absent; JSON lines end at LF alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import (
    append_jsonl,
    cut_torn_line,
    hash_json,
    read_json,
    read_jsonl,
    sha256_file,
    write_atomic,
    write_jsonl,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
rows = st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=5)


@given(rows)
def test_rows_survive_a_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[dict]) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "rows.jsonl"
    write_jsonl(path, rows)
    assert list(read_jsonl(path)) == rows


def test_unicode_separators_are_text_not_line_ends(tmp_path: Path) -> None:
    row = {"statement": "a\u2028b\u2029c\u0085d\x0be\x0cf"}
    write_jsonl(tmp_path / "rows.jsonl", [row, row])
    assert list(read_jsonl(tmp_path / "rows.jsonl")) == [row, row]


@pytest.mark.parametrize("bad", [b"{", b"[1]", b'"x"', b'{"a": 1} x', b"\xff\xfe"])
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + bad + b"\n")
    with pytest.raises(UserError, match=r"rows\.jsonl line 2 "):
        list(read_jsonl(path))


@given(st.binary(max_size=200).filter(lambda tail: b"\n" not in tail))
def test_a_torn_last_line_is_cut_before_appending(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n' + tail)
    assert cut_torn_line(path) == len(tail)
    append_jsonl(path, [{"a": 2}])
    assert [row["a"] for row in read_jsonl(path)] == [1, 2]


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"x" * 200_000)
    assert cut_torn_line(path) == 200_000
    assert path.read_bytes() == b'{"a": 1}\n'


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_reading_what_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_json(tmp_path / "no.json")
    for text in ("{", "[" * 100_000):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"bad\.json is not valid JSON"):
            read_json(tmp_path / "bad.json")


def test_hashes_are_those_of_the_standard_tools(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_file(tmp_path / "abc") == expected
    assert hash_json({"b": 1, "a": [2]}) == hash_json(json.loads('{"a":[2],"b":1}'))
    assert hash_json({"a": 1}) != hash_json({"a": 2})
