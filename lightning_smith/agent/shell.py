"""Whether a piece of bash is whole: no quote, expansion or here-document is left open at its end.

text = ShellText()
text.add("cat > notes.md <<'EOF'")
text.whole                                      # False until the line "EOF" was added

This reads as much of bash's grammar as that question needs: quotes, comments, expansions, brackets,
arithmetic and here-documents. Keywords are not its business: bash runs no part of an `if` without its `fi`.
"""

from __future__ import annotations

import re

_WORD_START = frozenset(" \t;&|(){}<>\n")
_DELIMITER = re.compile(r"""<<(-?)[ \t]*((?:'[^']*'|"[^"]*"|\\.|[^\s;&|<>()'"\\])+)""")
_QUOTE_OR_ESCAPE = re.compile(r"""'([^']*)'|"([^"]*)"|\\(.)""")

_NAMES = {
    "'": "a single quote",
    "$'": "a single quote",
    '"': "a double quote",
    "`": "a backquote",
    "$(": "a command substitution",
    "((": "an arithmetic expression",
    "${": "a parameter expansion",
    "(": "a bracket",
}


class ShellText:
    """Reads bash line by line and knows what is open after the last one."""

    def __init__(self) -> None:
        self._open: list[str] = []
        """Keys of `_NAMES`, the innermost last."""
        self._announced: list[tuple[str, bool]] = []
        """Here-documents of the line: end word, and whether tabs before it are ignored."""
        self._documents: list[tuple[str, bool]] = []
        """Here-documents whose text has begun or comes next."""

    @property
    def whole(self) -> bool:
        """Whether bash would take the lines so far as finished commands."""
        return not (self._open or self._announced or self._documents)

    @property
    def open_part(self) -> str:
        """What is open, in words; for text that is not whole."""
        if self._documents or self._announced:
            return f"the here-document up to {(self._documents + self._announced)[0][0]}"
        return _NAMES[self._open[-1]]

    def add(self, line: str) -> None:
        """Read one more line, given without its line end."""
        if self._documents:
            word, tabs = self._documents[0]
            if (line.lstrip("\t") if tabs else line) == word:
                self._documents.pop(0)
            return
        at = 0
        while at < len(line):
            at = self._step(line, at)
        if self._announced and self._in_command():
            self._documents, self._announced = self._announced, []

    def _in_command(self) -> bool:
        return not self._open or self._open[-1] in ("$(", "`", "(")

    def _step(self, line: str, at: int) -> int:
        """Read what stands at `at`; returns where the next thing stands."""
        inside = self._open[-1] if self._open else ""
        char = line[at]
        if inside == "'":
            return self._close_at(char == "'", at)
        if char == "\\":
            return at + 2
        if inside == "$'":
            return self._close_at(char == "'", at)
        if inside == '"':
            return self._close_at(True, at) if char == '"' else self._expansion(line, at)
        if inside == "${":
            return self._close_at(True, at) if char == "}" else self._quote(line, at)
        if inside == "((" and line.startswith("))", at):
            self._open.pop()
            return at + 2
        if char == ")" and inside in ("$(", "(", "(("):
            return self._close_at(True, at)
        if inside == "((":
            return self._bracket(line, at)
        return self._command(line, at)

    def _close_at(self, ends: bool, at: int) -> int:
        if ends:
            self._open.pop()
        return at + 1

    def _command(self, line: str, at: int) -> int:
        """Something where bash reads commands: at the top, in $( ) and between backquotes."""
        starts_word = at == 0 or line[at - 1] in _WORD_START
        if line[at] == "#" and starts_word:
            return self._comment(line, at)
        if line.startswith("((", at) and starts_word:
            self._open.append("((")
            return at + 2
        if line.startswith("<<<", at):
            return at + 3
        if line.startswith("<<", at) and (match := _DELIMITER.match(line, at)) is not None:
            word = _QUOTE_OR_ESCAPE.sub(lambda part: part[1] or part[2] or part[3] or "", match[2])
            self._announced.append((word, bool(match[1])))
            return match.end()
        return self._bracket(line, at)

    def _comment(self, line: str, at: int) -> int:
        """A comment goes to the end of the line; between backquotes the closing one ends it before."""
        if self._open and self._open[-1] == "`" and "`" in line[at:]:
            return line.index("`", at)
        return len(line)

    def _bracket(self, line: str, at: int) -> int:
        """Return an opening bracket of a subshell, an array, a function or an arithmetic term; else a quote."""
        if line[at] == "(":
            self._open.append("(")
            return at + 1
        return self._quote(line, at)

    def _quote(self, line: str, at: int) -> int:
        if line.startswith("$'", at) and '"' not in self._open:
            self._open.append("$'")
            return at + 2
        if line[at] in ('"', "'"):
            self._open.append(line[at])
            return at + 1
        return self._expansion(line, at)

    def _expansion(self, line: str, at: int) -> int:
        """Return what expands even between double quotes: $( ), $(( )), ${ } and backquotes."""
        for opening, name in (("$((", "(("), ("$(", "$("), ("${", "${")):
            if line.startswith(opening, at):
                self._open.append(name)
                return at + len(opening)
        if line[at] == "`":
            if "`" in self._open:
                del self._open[len(self._open) - 1 - self._open[::-1].index("`") :]
            else:
                self._open.append("`")
        return at + 1
