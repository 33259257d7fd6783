"""Tests with altered expectations, which right code fails and only a forged result passes.

    alter(b"def test_one():\\n    assert one() == 1\\n", "seed", {"test_one"})  # ... assert one() == 5

The code under test shares a process with pytest, so it can forge the result of every test that it knows by name.
Told apart it is by runs in which some tests have expectations that are wrong (`mixed.py`), in the same files, under
the same names. A forger cannot know which: whether 1 or 5 is expected of `one` is what the task is about. What passes
with a wrong expectation was forged. The same goes for code that makes its results equal to everything, and for code
that reads the expected value off the test.

Every assertion is altered where it stands, so that the rest of the file stays as it is: a literal that something
is compared with gets another value, other comparisons their opposite, an expected exception becomes another one. What
comes of it should look like what people write. A test function without any assertion gets one that fails.
"""

from __future__ import annotations

import ast
import random
import re
import string
import warnings
from collections.abc import Collection, Iterator

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
_WIDE_EXCEPTION = re.compile(r"\b(Base)?Exception\b")
_EXCEPTIONS = (
    "AttributeError",
    "ImportError",
    "IndexError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
)
"""Few other exceptions are made from one of them."""
_ALIKE = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
_PLAIN = (ast.Call, ast.Name, ast.Attribute, ast.Subscript)
"""What needs no brackets after `not`."""
_STRING = re.compile(rb"""(?s)[a-zA-Z]*('{3}|"{3}|'|")(?=.*\1$)""")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_Edit = tuple[int, int, bytes]
"""Start and end of a range of bytes, and what takes its place."""


def functions_in(source: bytes) -> set[str]:
    """Names of the functions and methods of a test file, not of those within others; none if it is not Python."""
    tree = _parse(source)
    return (
        {function.name for node in tree.body for function in _functions(node)} if tree is not None else set()
    )


def alter(source: bytes, seed: str, tests: Collection[str], helpers: Collection[str] = ()) -> bytes | None:
    """A test file with the expectations of some functions altered, each the same for the same seed.

    Of the functions named as `tests` each gets one at least, of the `helpers` those alone that have any. None if there
    is nothing to alter; files that are not Python in UTF-8 are among those.
    """
    tree = _parse(source)
    if tree is None or source.startswith(b"\xef\xbb\xbf"):
        return None
    file = _File(source, seed)
    edits: list[_Edit] = []
    for function in (function for node in tree.body for function in _functions(node)):
        if function.name in tests:
            edits += file.edits(function) or [file.failure(function)]
        elif function.name in helpers:
            edits += file.edits(function)
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

    def __init__(self, source: bytes, seed: str) -> None:
        self._source, self._seed, self._chance = source, seed, random.Random(seed)
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def edits(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[_Edit]:
        """What alters the expectations of a function, whichever others are altered."""
        self._chance = random.Random(f"{self._seed} {function.name} {function.lineno}")
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
        text = self._source[start:end]
        return start, end, b"not " + text if isinstance(node, _PLAIN) else b"not (" + text + b")"

    def _call(self, node: ast.Call) -> _Edit | None:
        """Alter a call of unittest, pytest or numpy that asserts."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        end = self._range(node.func)[1]
        if name in _OPPOSITE_METHODS:
            return end - len(name), end, _OPPOSITE_METHODS[name].encode()
        if _RAISING.fullmatch(name) and node.args:
            start, end = self._range(node.args[0])
            expected = self._source[start:end].decode()
            # A `raises` of everything is met by whatever else is raised.
            wide = _WIDE_EXCEPTION.search(expected) is not None
            others = [name for name in _EXCEPTIONS if name not in expected and not wide] or ["RecursionError"]
            return start, end, self._chance.choice(others).encode()
        if _EQUALITY.fullmatch(name) and len(node.args) >= 2 and "Not" not in name:
            return self._other_value(node.args[1], node.args[0])
        return None

    def _other_value(self, *sides: ast.expr) -> _Edit:
        """Alter a literal in one of the sides, the first that has one, or make the expected one a pair.

        Not so the relation: what is equal to everything must be equal to another value as well. The expected side is
        the one that calls nothing, else the first.
        """
        for side in sides:
            for node in _literals(side):
                start, end = self._range(node)
                text = self._other_literal(node, self._source[start:end])
                if text is not None:
                    return start, end, text
        expected = next((side for side in sides if not _calls(side)), sides[0])
        start, end = self._range(expected)
        return start, end, b"(%s, %d)" % (self._source[start:end], self._chance.randint(1, 9))

    def _other_literal(self, node: ast.expr, text: bytes) -> bytes | None:
        value = getattr(node, "value", None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            other = value + self._chance.randint(1, 9)
            return None if other == value or other - other != 0 else repr(other).encode()
        quote = _STRING.match(text)
        if not isinstance(value, (str, bytes)) or quote is None:
            return None
        start, end = quote.end(), len(text) - len(quote[1])
        # Neither in an escape sequence nor in what is several literals side by side.
        plain = b"\\" not in text and quote[1] not in text[start:end]
        places = [place for place in range(start, end) if plain and text[place : place + 1].isalnum()]
        if not places:
            return text[:end] + self._chance.choice(string.ascii_lowercase).encode() + text[end:]
        place = self._chance.choice(places)
        old = text[place : place + 1].decode()
        (alike,) = (letters for letters in _ALIKE if old in letters)
        return text[:place] + self._chance.choice(alike.replace(old, "")).encode() + text[place + 1 :]

    def failure(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Edit:
        """An assertion that fails, before the first statement of a function."""
        body = function.body
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


def _calls(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


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
