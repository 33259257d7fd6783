"""Tables are read as they were written, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.core.errors import UserError
from lightning_smith.core.tables import read_table, table_text, write_table

HEADER = ("a", "b")
CELL = st.text(st.characters(blacklist_characters="\t\n\r", blacklist_categories=["Cs"]))


@given(rows=st.lists(st.tuples(CELL.filter(lambda text: not text.startswith("#")), CELL)))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("table") / "t.tsv"
    write_table(path, HEADER, rows)
    assert [row for _, row in read_table(path, HEADER, remedy="-")] == rows


def test_notes_are_skipped_and_lines_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(table_text(HEADER, [(1, 2)], ["# a note"]))
    assert path.read_text() == "# a note\na\tb\n1\t2\n"
    assert read_table(path, HEADER, remedy="-") == [(3, ("1", "2"))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a whole table with the columns a, b: make it again"),
        ("a\tc\n", "is not a whole table"),
        ("a\tb\n1\t2", "is not a whole table"),
        ("a\tb\n1\n", "line 2 is damaged: make it again"),
        ("a\tb\n1\t2\t3\n", "line 2 is damaged"),
        (None, "does not exist: make it again"),
    ],
)
def test_what_is_no_whole_table_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "t.tsv").write_text(text)
    with pytest.raises(UserError, match=said):
        read_table(tmp_path / "t.tsv", HEADER, remedy="make it again")
