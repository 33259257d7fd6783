"""The tables in docs/attacks.md are the corpus's and the controls'."""

import table


def test_the_table_is_up_to_date() -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    assert all(mark in text for mark in (table.START, table.END, table.CONTROLS, table.CONTROLS_END))
    assert table.page(text) == text, "run `uv run --frozen python tests/attacks/table.py`"
