"""The one reader of unified diffs: their parts, the files that each names, and which files a patch touches.

Names that git quotes (`"a/Pr\\303\\274fung.py"`) are decoded, and all are without their first folder, a prefix (`a/`)
that `git apply` and `patch -p1` take off. Rollouts in pods use this, so only the standard library is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_GIT_HEADER = re.compile(rb"^diff --git ", re.M)
_NAMING = re.compile(rb"(diff --git |--- |\+\+\+ |rename from |rename to |copy from |copy to )")
_ABSENT = "/dev/null"


class UnreadablePatchError(Exception):
    """A text that is no unified diff with at least one file in it."""


@dataclass(frozen=True)
class FileDiff:
    """The part of a patch that is about one file, and the paths that its header names, the new one last."""

    names: tuple[str, ...]
    data: bytes


def edited_files(patch: str) -> set[str]:
    """Return paths in the repository that a unified diff changes, adds, deletes or renames, both names of a renamed
    one.

    Raise UnreadablePatchError for a text that is no diff.
    """
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        # Hunks hold lines that end in LF alone; others (a form feed, U+2028) are text.
        PatchSet(line + "\n" for line in patch.split("\n"))
    except UnidiffParseError as error:
        raise UnreadablePatchError(str(error)) from None
    edited = {name for part in split_diff(patch.encode("utf-8", "replace")) for name in part.names}
    if not edited:
        raise UnreadablePatchError("no file is in it")
    return edited


def split_diff(diff: bytes) -> list[FileDiff]:
    """Return the parts of a patch: in git's format each from its `diff --git` line on, else from its `---` line on.

    Text before the first part is dropped; a patch without such lines is one part without names.
    """
    starts = [match.start() for match in _GIT_HEADER.finditer(diff)] or list(_plain_starts(diff))
    if not starts:
        return [FileDiff((), diff)] if diff else []
    ends = [*starts[1:], len(diff)]
    parts = [diff[start:end] for start, end in zip(starts, ends, strict=True)]
    return [FileDiff(_header_names(part), part) for part in parts]


def hunk_lines(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """Yield each line with whether it belongs to a hunk's text, as the counts in the hunks' first lines say."""
    removed = added = 0
    for line in lines:
        inside = removed > 0 or added > 0
        if inside and not line.startswith("\\"):
            removed -= line[:1] != "+"
            added -= line[:1] != "-"
        elif match := _HUNK.match(line):
            removed, added = (int(count) if count else 1 for count in match.groups())
        yield inside, line


def _plain_starts(diff: bytes) -> Iterator[int]:
    """Yield where the parts of a patch begin that has no `diff --git` lines; `---` inside of a hunk is a removed
    line.
    """
    at, before, start = 0, "", 0
    for inside, line in hunk_lines(diff.decode("latin-1").split("\n")):  # one character a byte
        if not inside and line.startswith("+++ ") and before.startswith("--- "):
            yield start
        start, before = at, "" if inside else line
        at += len(line) + 1


def _header_names(part: bytes) -> tuple[str, ...]:
    """Return every path that the header of a part names, without its prefix."""
    names: list[str] = []
    for line in part.split(b"\n"):
        if line.startswith((b"@@ ", b"GIT binary patch", b"Binary files ")):
            break
        keyword = _NAMING.match(line)
        if keyword is None:
            continue
        rest = line[keyword.end() :].rstrip(b"\t\r")
        if keyword[0] == b"diff --git ":
            names += map(_without_prefix, _two_paths(rest))
        elif keyword[0] in (b"--- ", b"+++ "):
            # A tab ends the name, and what other tools than git write after it is a time.
            name = unquote(rest if rest.startswith(b'"') else rest.split(b"\t")[0])
            names += [_without_prefix(name)] if name != _ABSENT else []
        else:
            names.append(unquote(rest))
    return tuple(dict.fromkeys(names))


def _without_prefix(name: str) -> str:
    return name.partition("/")[2] or name


def _two_paths(rest: bytes) -> list[str]:
    """Both paths of a `diff --git` line.

    Two unquoted paths with blanks are told apart by being the same; if they are not, the header repeats them.
    """
    quoted = re.fullmatch(rb'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', rest)
    if quoted is not None:
        return [unquote(quoted[1]), unquote(quoted[2])]
    middle = len(rest) // 2
    if rest[:middle][2:] == rest[middle + 1 :][2:]:
        return [unquote(rest[:middle])]
    return []


def unquote(name: bytes) -> str:
    """Return a path as git prints it: as it is, or between double quotes with C's escapes."""
    if not name.startswith(b'"'):
        return os.fsdecode(name)
    plain = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else plain.get(code, code)

    return os.fsdecode(re.sub(rb"\\([0-7]{3}|.)", character, name[1:-1], flags=re.S))
