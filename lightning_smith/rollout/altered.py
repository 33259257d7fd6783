"""Tests with altered expectations, which right code fails and only a forged result passes.

    alter(b"def test_one():\\n    assert one() == 1\\n", "seed")  # ... assert one() == 5

The code under test shares a process with pytest, so it can forge the result of every test that it knows by name.
Told apart it is by a second run: the same files, names and number of tests, but expectations that are wrong. A
forger cannot know in which of the two runs it is: whether 1 or 5 is expected of `one` is what the task is about, and
nothing else tells them apart (`pair.py`). What passes in both runs was forged. The same goes for code that makes its
results equal to everything, and for code that reads the expected value off the test.

Every assertion is altered where it stands, so that the rest of the file stays as it is: a literal that something
is compared with gets another value, other comparisons their opposite. A test function without any assertion gets
one that fails.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Iterator

_OPPOSITE_OPERATORS = {
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
}
_OPPOSITE_METHODS = {
    one: other
    for pair in (
        ("assertTrue", "assertFalse"),
        ("assertIs", "assertIsNot"),
        ("assertIsNone", "assertIsNotNone"),
        ("assertIn", "assertNotIn"),
        ("assertIsInstance", "assertNotIsInstance"),
        ("assertGreater", "assertLessEqual"),
        ("assertLess", "assertGreaterEqual"),
        ("assertRegex", "assertNotRegex"),
    )
    for one, other in (pair, pair[::-1])
}
_OPPOSITE_METHODS |= {"assertNotEqual": "assertEqual", "assertNotAlmostEqual": "assertAlmostEqual"}
_EQUALITY = re.compile(r"assert_?\w*(equal|equals|same|close)\w*|eq_", re.I)
_RAISING = re.compile(r"raises|assertRaises(Regex)?")
_WIDE_EXCEPTION = re.compile(r"\b(Zero|Arithmetic|Base)?(Division)?(Error|Exception)\b")
_STRING = re.compile(rb"""(?s)[a-zA-Z]*('{3}|"{3}|'|")(?=.*\1$)""")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_Edit = tuple[int, int, bytes]
"""Start and end of a range of bytes, and what takes its place."""


def alter(source: bytes, seed: str) -> bytes | None:
    """A test file with its expectations altered, the same for the same seed; None if there is nothing to alter.

    Files that are not Python in UTF-8 are among those.
    """
    tree = _parse(source)
    if tree is None or source.startswith(b"\xef\xbb\xbf"):
        return None
    file = _File(source, random.Random(seed))
    edits = [edit for node in tree.body for function in _functions(node) for edit in file.edits(function)]
    altered, at = bytearray(), 0
    for start, end, text in sorted(set(edits)):
        if start >= at:  # else it lies within the one before
            altered += source[at:start] + text
            at = end
    altered += source[at:]
    return bytes(altered) if edits and _parse(bytes(altered)) is not None else None


def _parse(source: bytes) -> ast.Module | None:
    try:
        source.decode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tests' own escapes
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The outermost functions of a statement: it itself, or those of a class or of a branch."""
    if isinstance(node, _FUNCTIONS):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _functions(child)


class _File:
    """A test file, and where its syntax tree's nodes are in it."""

    def __init__(self, source: bytes, chance: random.Random) -> None:
        self._source, self._chance = source, chance
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def edits(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[_Edit]:
        """What alters the expectations of a function."""
        edits = []
        for statement in function.body:
            for node in ast.walk(statement):
                edit = None
                if isinstance(node, ast.Assert):
                    edit = self._condition(node.test)
                elif isinstance(node, ast.Call):
                    edit = self._call(node)
                if edit is not None:
                    edits.append(edit)
        if not edits and function.name.startswith("test"):
            edits.append(self._failure(function.body))
        return edits

    def _condition(self, node: ast.expr) -> _Edit | None:
        """Alter what `assert` is given."""
        start, end = self._range(node)
        if isinstance(node, ast.Constant):
            return None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            blanks = re.compile(rb"not[ \t]*").match(self._source, start)
            return (start, blanks.end(), b"") if blanks else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, operator, right = node.left, node.ops[0], node.comparators[0]
            if isinstance(operator, ast.Eq):
                return self._other_value(right, left)
            pattern, opposite = _OPPOSITE_OPERATORS[type(operator)]
            gap = self._range(left)[1], self._range(right)[0]
            found = re.search(pattern.encode(), self._source[slice(*gap)])
            if found is not None:
                return gap[0] + found.start(), gap[0] + found.end(), opposite.encode()
        return start, end, b"not (" + self._source[start:end] + b")"

    def _call(self, node: ast.Call) -> _Edit | None:
        """Alter a call of unittest, pytest or numpy that asserts."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        end = self._range(node.func)[1]
        if name in _OPPOSITE_METHODS:
            return end - len(name), end, _OPPOSITE_METHODS[name].encode()
        if _RAISING.fullmatch(name) and node.args:
            start, end = self._range(node.args[0])
            other = b"RecursionError" if _WIDE_EXCEPTION.search(self._source[start:end].decode()) else None
            return start, end, other or b"ZeroDivisionError"
        if _EQUALITY.fullmatch(name) and len(node.args) >= 2 and "Not" not in name:
            return self._other_value(node.args[1], node.args[0])
        return None

    def _other_value(self, *sides: ast.expr) -> _Edit:
        """Alter a literal in one of the sides, the first that has one, or make the first one a list of itself."""
        for side in sides:
            for node in _literals(side):
                start, end = self._range(node)
                text = self._other_literal(node, self._source[start:end])
                if text is not None:
                    return start, end, text
        start, end = self._range(sides[0])
        return start, end, b"[" + self._source[start:end] + b"]"

    def _other_literal(self, node: ast.expr, text: bytes) -> bytes | None:
        value = getattr(node, "value", None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            other = value + self._chance.randint(1, 9)
            return None if other == value or other - other != 0 else repr(other).encode()
        quote = _STRING.match(text)
        if not isinstance(value, (str, bytes)) or quote is None:
            return None
        letters = "".join(self._chance.choices("abcdefghijklmnopqrstuvwxyz", k=2))
        end = len(text) - len(quote[1])
        return text[:end] + letters.encode() + text[end:]

    def _failure(self, body: list[ast.stmt]) -> _Edit:
        """An assertion that fails, before the first statement of a function."""
        documented = (
            len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        )
        first = body[1 if documented else 0]
        lines = [first.lineno, *(node.lineno for node in getattr(first, "decorator_list", []))]
        line = self._lines[min(lines) - 1]
        start = self._offset(first.lineno, first.col_offset)
        indent = self._source[line : line + first.col_offset]
        number = self._chance.randint(1, 9)
        if indent.strip():  # on the line of the `def`
            return start, start, b"assert len(str()) == %d; " % number
        return line, line, indent + b"assert len(str()) == %d\n" % number

    def _range(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column


def _literals(node: ast.expr) -> Iterator[ast.expr]:
    """The literals that a value is made of: itself, or what a list, tuple, set or dictionary holds."""
    if isinstance(node, ast.Constant):
        yield node
    elif isinstance(node, ast.UnaryOp):
        yield from _literals(node.operand)
    elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        for element in node.elts:
            yield from _literals(element)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _literals(value)
