"""Which files a patch touches."""

from __future__ import annotations

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet


class UnreadablePatchError(Exception):
    """A text that is no unified diff with at least one file in it."""


def edited_files(patch: str) -> set[str]:
    """Paths in the repository that a unified diff changes, adds, deletes or renames, both names of a renamed one.

    Raises UnreadablePatchError for a text that is no diff.
    """
    try:
        # Hunks hold lines that end in LF alone; others (a form feed, U+2028) are text.
        files = PatchSet(line + "\n" for line in patch.split("\n"))
    except UnidiffParseError as error:
        raise UnreadablePatchError(str(error)) from None
    names = {name for file in files for name in (file.source_file, file.target_file)}
    edited = {name.partition("/")[2] if name[:2] in ("a/", "b/") else name for name in names} - {"/dev/null"}
    if not edited:
        raise UnreadablePatchError("no file is in it")
    return edited
