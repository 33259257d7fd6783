"""Reference files: what is written is read back, and nothing is taken that is of other tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.grading.assignments import VARIANTS, Results
from lightning_smith.grading.find_references import all_tests
from lightning_smith.grading.references import ReferenceRow, References, sha256, write_references

IDS = st.frozensets(st.sampled_from([f"t.py::test_{number}[é - {number}]" for number in range(9)]))
RESULTS = st.lists(st.builds(Results, IDS, IDS), min_size=VARIANTS, max_size=VARIANTS).map(tuple)
NOTHING = (Results(frozenset(), frozenset()),) * VARIANTS


def a_row(results: tuple[Results, ...] = NOTHING, **sources: str) -> ReferenceRow:
    return ReferenceRow(
        "image", "main", {name: sha256(text.encode()) for name, text in sources.items()}, results
    )


@given(RESULTS)
def test_a_row_is_read_back(results: tuple[Results, ...]) -> None:
    row = a_row(results, a="x")
    assert ReferenceRow.from_dict(json.loads(json.dumps(row.to_dict())), "here") == row


def test_results_are_found_for_the_same_tests_alone(tmp_path: Path) -> None:
    failing = frozenset({"a::test_x"})
    results = (Results(failing, frozenset()), *NOTHING[1:])
    path = tmp_path / "references.jsonl.gz"
    write_references(path, [a_row(results, a="x", b="y")])
    first = path.read_bytes()
    write_references(path, [a_row(results, a="x", b="y")])
    assert path.read_bytes() == first
    found = References.read(path)
    assert found.find("image", "main", {"a": b"x"}) == results
    assert found.find("image", "main", {"a": b"x", "b": b"y"}) == results
    assert found.find("image", "main", {"a": b"z"}) is None
    assert found.find("image", "main", {"c": b"x"}) is None
    assert found.find("image", "0123", {"a": b"x"}) is None
    assert found.find("other", "main", {"a": b"x"}) is None
    assert References().find("image", "main", {}) is None


def test_a_row_of_other_alterations_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "references.jsonl.gz"
    row = a_row(a="x").to_dict()
    path.write_bytes(gzip.compress(json.dumps(row | {"version": 0}).encode()))
    assert References.read(path).find("image", "main", {"a": b"x"}) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"{}", "no whole gzip file"),
        (gzip.compress(b"{}\n" * 99)[:-4], "no whole gzip file"),
        (gzip.compress(b"{"), "references.jsonl.gz"),
        (
            gzip.compress(json.dumps(a_row().to_dict() | {"failing": ["f"] * VARIANTS}).encode()),
            "row 1 is no row",
        ),
        (gzip.compress(json.dumps(a_row().to_dict() | {"passing": []}).encode()), "row 1 is no row"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "references.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        References.read(path)


def test_an_image_has_the_tests_of_all_its_tasks() -> None:
    one = RolloutTask("a__1", "image", "", ("t::x",), ("t::y", "t::z"), "repo")
    two = RolloutTask("a__2", "image", "", ("t::y",), ("u::v",), "repo")
    assert all_tests([one, two]) == RolloutTask(
        "a__1", "image", "", ("t::x", "t::y"), ("t::z", "u::v"), "repo"
    )


def test_the_miniatures_file_is_of_these_alterations() -> None:
    path = Path(__file__).resolve().parents[3] / "assets/miniature/tasks/references.jsonl.gz"
    assert len(References.read(path)._rows) == 22
