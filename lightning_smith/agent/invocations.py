"""Which programs a piece of bash starts, as far as its text says so: read with tree-sitter's grammar of bash.

    script = read_script("cd src && g''it log | head")
    [call.words for call in script.calls]           # [("cd", "src"), ("git", "log"), ("head",)]

Everything that runs counts, wherever it stands: pipelines, subshells, conditions, bodies of functions, command and
process substitutions, also those between double quotes and in here-documents. Text that only looks like a command
(an argument, a comment, the body of a here-document) does not.

Nothing is executed or expanded: a word is known where quoting alone decides what it is, else it is None.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

TREE = "/testbed"
"""The folder that a command starts in."""

Words = tuple[str | None, ...]

_PARSER = Parser(Language(tree_sitter_bash.language()))

_MAX_DEPTH = 150
"""Levels of the syntax tree; deeper text is opaque, since it is read by recursion."""

_SCOPES = frozenset({"subshell", "command_substitution", "process_substitution", "function_definition"})
"""What a `cd` inside of does not leave."""

_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
)
_NO_WORDS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect", "variable_assignment"})
_ESCAPE = re.compile(r"\\(\n?)(.?)", re.DOTALL)
_QUOTED_ESCAPE = re.compile(r'\\(\n|[$`"\\])')
_ANSI_C = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_C_LETTERS = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_PATTERN = re.compile(r"(?<!\\)[*?\[{]")


@dataclass(frozen=True)
class Call:
    """One program as bash would start it."""

    words: Words
    """Name and arguments without their quotes; None for what only bash can know."""
    folder: str | None = TREE
    """Where it starts, if the text says so."""
    writes: Words = ()
    """Targets of its output redirections."""
    reads: Words = ()
    """Sources of its input redirections."""
    stdin: str | None = None
    """Text of its here-document or here-string, before expansion."""
    piped: bool = False
    """Whether its standard input is a pipe."""

    @property
    def name(self) -> str | None:
        """The program without its folder; None if it is not known."""
        return posixpath.basename(self.words[0]) if self.words and self.words[0] else None

    def path(self, word: str | None) -> str | None:
        """Absolute, normalised form of a path that the call names; None if it is not known."""
        if word is None or word.startswith("~") or (not word.startswith("/") and self.folder is None):
            return None
        return posixpath.normpath(posixpath.join(self.folder or "/", word))


@dataclass
class Script:
    """What was read of a piece of bash."""

    calls: list[Call] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)
    """Names of parameters that it expands."""
    functions: set[str] = field(default_factory=set)
    """Functions that it defines: calls by these names are no programs."""
    opaque: int = 0
    """Places where what runs cannot be told from the text: names that are expanded, text that is no bash."""


def read_script(text: str, folder: str | None = TREE) -> Script:
    """Read a script that starts in `folder`.

    Of text that the grammar does not take, only the statements before the first fault are read.
    """
    source = text.encode("utf-8", "surrogatepass")
    root = _PARSER.parse(source).root_node
    reader = _Reader(source, folder)
    reader.script.opaque += root.has_error
    for statement in root.children:
        if statement.has_error:
            break
        reader.visit(statement, 0)
    return reader.script


class _Reader:
    """Walks a syntax tree in the order of the text."""

    def __init__(self, source: bytes, folder: str | None) -> None:
        self.source, self.folder = source, folder
        self.script = Script()

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def visit(self, node: Node, depth: int, redirects: _Redirects | None = None, piped: bool = False) -> None:
        if depth > _MAX_DEPTH:
            self.script.opaque += 1
            return
        folder = self.folder
        if node.type == "redirected_statement":
            redirects = (redirects or _Redirects()).joined(self.redirects(node))
        elif node.type == "function_definition":
            name = node.child_by_field_name("name")
            if name is not None:
                self.script.functions.add(self.text(name))
        elif node.type in ("simple_expansion", "expansion"):
            self.script.variables.update(
                self.text(part) for part in node.children if part.type == "variable_name"
            )
        elif node.type == "command":
            self.call(node, depth, redirects or _Redirects(), piped)
            return
        elif node.type in ("raw_string", "comment"):
            return
        parts = [part for part in node.children if part.is_named]
        heirs = self.heirs(node, parts)
        for index, part in enumerate(parts):
            piped_in = node.type == "pipeline" and index > 0
            inherits = part in heirs
            self.visit(part, depth + 1, redirects if inherits else None, piped_in or (piped and inherits))
        if node.type in _SCOPES:
            self.folder = folder

    @staticmethod
    def heirs(node: Node, parts: list[Node]) -> list[Node]:
        """Return the parts of a statement that its redirections and its pipe apply to."""
        if node.type == "redirected_statement":
            body = node.child_by_field_name("body")
            return [body] if body is not None else []
        return parts[-1:] if node.type in ("list", "pipeline") else parts

    def redirects(self, statement: Node) -> _Redirects:
        """Return what a statement's redirections name."""
        found = _Redirects()
        for part in statement.children_by_field_name("redirect"):
            if part.type == "file_redirect":
                operator = next((self.text(child) for child in part.children if not child.is_named), "")
                targets = [self.word(child) for child in part.children_by_field_name("destination")]
                if ">" in operator:
                    found.writes += targets
                if "<" in operator:
                    found.reads += targets
            elif part.type == "heredoc_redirect":
                found.stdin = "".join(self.text(c) for c in part.children if c.type == "heredoc_body")
            elif part.type == "herestring_redirect":
                found.stdin = next((self.word(child) for child in part.children if child.is_named), None)
                found.dynamic_stdin = found.stdin is None
        return found

    def call(self, node: Node, depth: int, redirects: _Redirects, piped: bool) -> None:
        words: list[str | None] = []
        redirects = redirects.joined(self.redirects(node))
        for part in node.children:
            if part.type == "command_name":
                words.append(self.name(part))
            elif part.type not in _NO_WORDS and (part.is_named or part.type in ("==", "=~")):
                words.append(self.word(part))
            self.visit(part, depth + 1)
        if not words:
            return
        if words[0] is None:
            self.script.opaque += 1
        call = Call(
            words=tuple(words),
            folder=self.folder,
            writes=tuple(redirects.writes),
            reads=tuple(redirects.reads),
            stdin=redirects.stdin,
            piped=piped or redirects.dynamic_stdin,
        )
        self.script.calls.append(call)
        if call.name in ("cd", "pushd"):
            target = next((word for word in words[1:] if word is None or not word.startswith("-")), None)
            self.folder = call.path(target)

    def name(self, node: Node) -> str | None:
        """Return the word of a command's name; None also for patterns, which bash would expand."""
        part = next((child for child in node.children if child.is_named), None)
        if part is None:
            return None
        pieces = part.children if part.type == "concatenation" else [part]
        if any(piece.type == "word" and _PATTERN.search(self.text(piece)) for piece in pieces):
            return None
        return self.word(part)

    def word(self, node: Node) -> str | None:
        """Return what a word is once its quotes are taken away; None if it is expanded in any other way."""
        text = self.text(node)
        if node.type in ("word", "number", "variable_name", "regex", "extglob_pattern", "test_operator"):
            return _ESCAPE.sub(lambda escape: "" if escape[1] and not escape[2] else escape[2], text)
        if node.type == "raw_string":
            return text[1:-1]
        if node.type == "ansi_c_string":
            return _ANSI_C.sub(_ansi_c, text[2:-1])
        if node.type == "translated_string":
            return self.word(node.children[-1])
        if node.type == "string":
            if any(part.is_named and part.type != "string_content" for part in node.children):
                return None
            return _QUOTED_ESCAPE.sub(lambda escape: escape[1].strip("\n"), text[1:-1])
        if node.type == "concatenation":
            parts = [self.word(part) for part in node.children]
            return None if None in parts else "".join(part for part in parts if part is not None)
        return None if node.is_named else text


@dataclass
class _Redirects:
    writes: list[str | None] = field(default_factory=list)
    reads: list[str | None] = field(default_factory=list)
    stdin: str | None = None
    dynamic_stdin: bool = False

    def joined(self, other: _Redirects) -> _Redirects:
        return _Redirects(
            self.writes + other.writes,
            self.reads + other.reads,
            other.stdin if other.stdin is not None else self.stdin,
            self.dynamic_stdin or other.dynamic_stdin,
        )


def _ansi_c(escape: re.Match[str]) -> str:
    """One escape between $' and ' (bash's manual, "ANSI-C Quoting")."""
    code = escape[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return _ANSI_C_LETTERS.get(code, code)
