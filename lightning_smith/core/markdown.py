"""Tables in Markdown, whatever their cells hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Return the lines of a table with the columns numbered in `right` aligned to the right."""
    aligned = set(right)
    rule = ["---:" if index in aligned else "---" for index in range(len(head))]
    return [f"| {' | '.join(map(_escaped, cells))} |" for cells in (head, rule, *rows)]


def _escaped(cell: str) -> str:
    """Return a cell that shows as it is: a bar would end it, and a backslash before one would undo its escape."""
    return " ".join(cell.replace("\\", "\\\\").replace("|", "\\|").splitlines())
