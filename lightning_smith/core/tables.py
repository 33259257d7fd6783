"""Tab-separated tables between stages: whole or refused, the same bytes for the same rows.

    write_table(path, ("filter", "kept"), [("statement", "7")])
    for number, (name, kept) in read_table(path, ("filter", "kept"), remedy="run the filters again"):

Cells hold neither tabs nor line ends. Lines that start with `#`, at the head of a committed table, are notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_atomic

Row = tuple[str, ...]


def table_text(header: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> str:
    """Return the content of a table."""
    lines = [*notes, *("\t".join(map(str, row)) for row in (header, *rows))]
    return "\n".join(lines) + "\n"


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table, whole or not at all."""
    write_atomic(path, table_text(header, rows))


def read_table(path: Path, header: Sequence[str], *, remedy: str) -> list[tuple[int, Row]]:
    """Return the rows of a table with the number of each one's line.

    Raise UserError, with the `remedy`, if the file is absent, has other columns, breaks off, or if a row has another
    number of cells.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {remedy}") from None
    rows = [
        (number, tuple(line.removesuffix("\r").split("\t")))
        for number, line in enumerate(lines[:-1], start=1)
        if not line.startswith("#")
    ]
    if not rows or rows[0][1] != tuple(header) or lines[-1]:
        raise UserError(f"{path} is not a whole table with the columns {', '.join(header)}: {remedy}")
    for number, cells in rows[1:]:
        if len(cells) != len(header):
            raise UserError(f"{path} line {number} is damaged: {remedy}")
    return rows[1:]
