"""The table in docs/attacks.md is the corpus's."""

import table


def test_the_table_is_up_to_date() -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    assert table.START in text and table.END in text
    assert table.page(text) == text, "run `uv run --frozen python tests/attacks/table.py`"
