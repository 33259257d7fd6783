"""Drops rows whose problem statement says nothing."""

from __future__ import annotations

import unicodedata

import pyarrow as pa

NAME = "statement"
COLUMNS = ("problem_statement",)
NULL = "null"
"""No value."""
EMPTY = "empty"
"""No characters: how the release writes a missing statement."""
WHITESPACE = "whitespace"
"""Only characters that `str.isspace` calls blank."""
INVISIBLE = "invisible"
"""Only blank characters and others that show nothing, such as U+200B and U+FEFF, which `str.strip` leaves."""
REASONS = (NULL, EMPTY, WHITESPACE, INVISIBLE)
"""Told apart so that a revision which writes a missing statement otherwise is seen in the ledger."""

_BLANK_LETTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols whose glyph is empty: Hangul fillers and the Braille blank."""


def reasons(batch: pa.RecordBatch) -> list[str | None]:
    """One of REASONS for each row to drop, None for each to keep."""
    return [why_dropped(statement) for statement in batch.column("problem_statement").to_pylist()]


def why_dropped(statement: str | None) -> str | None:
    """Return the reason to drop a row with this statement, None if it has something to read."""
    if statement is None:
        return NULL
    if not statement:
        return EMPTY
    if statement.isspace():
        return WHITESPACE
    return INVISIBLE if all(_shows_nothing(character) for character in statement) else None


def _shows_nothing(character: str) -> bool:
    """Return whether a character is blank, a control or format character, or a letter without a glyph."""
    return (
        character.isspace() or character in _BLANK_LETTERS or unicodedata.category(character) in ("Cc", "Cf")
    )
