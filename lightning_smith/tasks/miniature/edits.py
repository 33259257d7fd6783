"""The one-line repairs that the miniature's policy can write: one `sed` that replaces one operator or number.

    sed -i '41s| != | == |' boltons/mathutils.py

An operator is replaced together with the blank on each side of it; a number as a whole word.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

WINDOW_LINES = 7
"""Lines of the broken file that a problem statement names."""

WINDOW_CHARACTERS = 440
"""More than this in a window would not fit the policy's context."""

OPERATOR_FAMILIES = (
    ("+", "-"),
    ("*", "/", "//", "%", "**"),
    ("<", "<=", ">", ">="),
    ("==", "!="),
    ("in", "not in"),
    ("is", "is not"),
    ("and", "or"),
)
"""Operators that are mistaken for one another: a repair stays within one family."""

_FAMILY = {operator: family for family in OPERATOR_FAMILIES for operator in family}
_WORDS = r"is not|not in|\b(?:is|in|and|or)\b"
_OPERATOR = re.compile(rf"(?<= )(?:{_WORDS}|\*\*|//|<<|>>|[<>=!]=|[-+*/%<>])(?= )")
_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True)
class Edit:
    """Replace the `nth` match (1-based, as sed counts them) of `old` in a line by `new`."""

    old: str
    new: str
    nth: int

    def command(self, path: str, line: int) -> str:
        """The `sed` command; a number is matched as a whole word, `*` literally."""
        pattern = rf"\b{self.old}\b" if self.old.isdigit() else self.old.replace("*", r"\*")
        which = "" if self.nth == 1 else str(self.nth)
        return f"sed -i '{line}s|{pattern}|{self.new}|{which}' {path}"

    def apply(self, text: str) -> str:
        """One line of text after the edit."""
        pattern = rf"\b{self.old}\b" if self.old.isdigit() else re.escape(self.old)
        matches = list(re.finditer(pattern, text))
        if len(matches) < self.nth:
            return text
        match = matches[self.nth - 1]
        return text[: match.start()] + self.new + text[match.end() :]


def repair(buggy: str, fixed: str) -> Edit | None:
    """The edit that turns line `buggy` into `fixed` up to white space, or None if no single one does."""
    wanted = _without_blanks(fixed)
    candidates: list[Edit] = []
    for match in _OPERATOR.finditer(buggy):
        old = f" {match.group()} "
        nth = _nth_match(buggy, old, match.start() - 1)
        if nth:
            family = _FAMILY.get(match.group(), ())
            candidates += [Edit(old, f" {new} ", nth) for new in family if new != match.group()]
    for match in _NUMBER.finditer(buggy):
        number = match.group()
        nth = len(re.findall(rf"\b{number}\b", buggy[: match.end()]))
        candidates += [Edit(number, str(int(number) + change), nth) for change in (-1, 1)]
    return next((edit for edit in candidates if _without_blanks(edit.apply(buggy)) == wanted), None)


def _without_blanks(line: str) -> str:
    return re.sub(r"\s+", "", line)


def _nth_match(line: str, old: str, start: int) -> int:
    """Which of the matches of `old`, counted without overlap as sed does, starts at `start`; 0 if none."""
    starts = [match.start() for match in re.finditer(re.escape(old), line)]
    return starts.index(start) + 1 if start in starts else 0


def choose_window(lines: list[str], line: int, rng: random.Random) -> tuple[int, int] | None:
    """First and last line (1-based, inclusive) of a window that holds `line` at a random place.

    `lines` is the broken file. None if the window cannot be shown to the policy as it is: too many
    characters, or anything but printable ASCII (tools that print it would depend on the locale). Blank lines
    at the end are left out, because `sed -n` prints nothing for lines past the end of the file.
    """
    first = max(1, line - rng.randrange(WINDOW_LINES))
    last = min(len(lines), first + WINDOW_LINES - 1)
    while last > line and not lines[last - 1]:
        last -= 1
    shown = lines[first - 1 : last]
    printable = all(text.isascii() and (text.isprintable() or not text) for text in shown)
    if not printable or sum(map(len, shown)) > WINDOW_CHARACTERS:
        return None
    return first, last


def usable_path(path: str) -> bool:
    """True if a path can stand in the policy's commands without quotes."""
    return re.fullmatch(r"[A-Za-z0-9_./-]+", path) is not None
