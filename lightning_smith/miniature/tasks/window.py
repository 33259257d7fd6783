"""The lines around a bug that its problem statement names and that the tiny policy looks at."""

from __future__ import annotations

import random
import re

from lightning_smith.miniature.policy.conversation import MAX_WINDOW_CHARACTERS, WINDOW_LINES


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
    if sum(map(len, shown)) > MAX_WINDOW_CHARACTERS or not all(map(_is_plain, shown)):
        return None
    return first, last


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def usable_path(path: str) -> bool:
    """True if a path can stand in the policy's commands without quotes."""
    return re.fullmatch(r"[A-Za-z0-9_./-]+", path) is not None
