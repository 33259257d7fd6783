"""Other values in the place of a literal, near ones as a rule, that look like what people write.

    values = Values(source, tree)
    values.edits(node, chance)      # how the literal `node` gets another value, or None

Code under test must not know an altered expectation by its look. So a word gets letters of its own in another order, a
number one of its neighbours, a list its elements in another order, and any of them may become another literal of the
same file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from random import Random

Edit = tuple[int, int, bytes]
"""Start and end of a range of bytes, and what takes its place."""

_QUOTED = re.compile(rb"""(?s)([a-zA-Z]*)('{3}|"{3}|'|")(.*)\2$""")
_LONGEST = 60
"""Characters of a text that another may be replaced by."""
_TRIES = 20
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict)


class SourceFile:
    """A test file, and where its syntax tree's nodes are in it."""

    def __init__(self, source: bytes) -> None:
        self.bytes = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        return self.bytes[slice(*self.range(node))]

    def first_code(self, tree: ast.Module) -> int:
        """Return where the first statement's line starts that is neither the docstring nor an import from the
        future.
        """
        for number, node in enumerate(tree.body):
            document = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not document and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                decorators = getattr(node, "decorator_list", [])
                return self._lines[min([node.lineno, *(each.lineno for each in decorators)]) - 1]
        return len(self.bytes)

    def indent(self, statement: ast.stmt) -> bytes | None:
        """Return what stands before a statement on its line, None if that is more than blanks."""
        start = self._lines[statement.lineno - 1]
        before = self.bytes[start : start + statement.col_offset]
        return None if before.strip() else before


def applied(source: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the file after its edits; of two that overlap the first one counts."""
    altered, at = bytearray(), 0
    for start, end, text in sorted(set(edits)):
        if start >= at:
            altered += source[at:start] + text
            at = end
    return bytes(altered + source[at:])


class Values:
    """Other values for the literals of a file."""

    def __init__(self, file: SourceFile, tree: ast.Module) -> None:
        self._file = file
        found = [node.value for node in _constants(tree)]
        self._texts = sorted({value for value in found if isinstance(value, str) and len(value) <= _LONGEST})
        self._integers = sorted({value for value in found if type(value) is int})

    def edits(self, node: ast.expr, chance: Random) -> list[Edit] | None:
        """Give the literal, or one of those that a display holds, another value; None if it has none."""
        if isinstance(node, _CONTAINERS):
            return self._display(node, chance)
        if isinstance(node, ast.UnaryOp):
            return self.edits(node.operand, chance)
        if isinstance(node, ast.BinOp):
            for side in chance.sample([node.left, node.right], 2):
                if (edits := self.edits(side, chance)) is not None:
                    return edits
            return None
        if isinstance(node, ast.Constant):
            start, end = self._file.range(node)
            other = self._constant(node.value, self._file.bytes[start:end], chance)
            return None if other is None else [(start, end, other)]
        return None

    def literal(self, chance: Random) -> bytes:
        """Return a literal such as the file has."""
        kinds = [kind for kind in (self._texts, self._integers) if kind]
        value = chance.choice(chance.choice(kinds)) if kinds else chance.randint(2, 9)
        return (_quoted(value, "", '"') if isinstance(value, str) else repr(value)).encode()

    def _display(self, node: ast.List | ast.Tuple | ast.Set | ast.Dict, chance: Random) -> list[Edit] | None:
        elements = node.values if isinstance(node, ast.Dict) else node.elts
        start, end = self._file.range(node)
        if not elements:
            if isinstance(node, ast.Tuple) or self._file.bytes[start:end].strip(b"[]{} \n\t"):
                return None
            literal = self.literal(chance)
            inside = literal + b": " + self.literal(chance) if isinstance(node, ast.Dict) else literal
            return [(end - 1, end - 1, inside)]
        ways = [self._element, self._element, self._without, self._swapped]
        for way in (*chance.sample(ways, len(ways)), self._element):
            if (edits := way(node, elements, chance)) is not None:
                return edits
        return None

    def _element(self, node: ast.expr, elements: list[ast.expr], chance: Random) -> list[Edit] | None:
        keys = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else []
        parts = [*elements, *(keys if chance.random() < 0.3 else [])]
        for part in chance.sample(parts, len(parts)):
            if (edits := self.edits(part, chance)) is not None:
                return edits
        return None

    def _without(self, node: ast.expr, elements: list[ast.expr], chance: Random) -> list[Edit] | None:
        """Leave an element out; a tuple keeps two, or its brackets would mean something else."""
        if len(elements) < (3 if isinstance(node, ast.Tuple) else 2):
            return None
        keys = node.keys if isinstance(node, ast.Dict) else []
        firsts = [key or value for key, value in zip(keys or elements, elements, strict=True)]
        if any(isinstance(part, ast.Starred) for part in elements) or None in keys:
            return None
        place = chance.randrange(len(elements))
        if place + 1 < len(elements):
            return [(self._file.range(firsts[place])[0], self._file.range(firsts[place + 1])[0], b"")]
        return [(self._file.range(elements[place - 1])[1], self._file.range(elements[place])[1], b"")]

    def _swapped(self, node: ast.expr, elements: list[ast.expr], chance: Random) -> list[Edit] | None:
        if len(elements) < 2 or isinstance(node, ast.Set):
            return None
        texts = [self._file.text(element) for element in elements]
        one, other = chance.sample(range(len(elements)), 2)
        if texts[one] == texts[other] or any(isinstance(part, ast.Starred) for part in elements):
            return None
        return [
            (*self._file.range(elements[one]), texts[other]),
            (*self._file.range(elements[other]), texts[one]),
        ]

    def _constant(self, value: object, text: bytes, chance: Random) -> bytes | None:
        if isinstance(value, bool):
            return str(not value).encode()
        if isinstance(value, int):
            return self._integer(value, text, chance)
        if isinstance(value, float):
            return _decimal(value, text, chance)
        if isinstance(value, str):
            return self._text(value, text, chance)
        if isinstance(value, bytes):
            return self._text(value.decode("latin-1"), text, chance)
        return chance.choice([b"False", b"True", b"[]", b"0", b'""']) if value is None else None

    def _integer(self, value: int, text: bytes, chance: Random) -> bytes | None:
        if not text.isdigit():
            return None if value == 0 else b"%s + 1" % text  # hexadecimal and the like
        # As near as bugs are, so that who takes what is near for right takes these as well.
        others = [
            value + 1,
            value + 1,
            value - 1,
            value - 1,
            value + 2,
            *chance.sample(self._integers or [9], 1),
        ]
        others = [other for other in others if other != value and (other >= 0 or value == 0)]
        return str(chance.choice(others)).encode()

    def _text(self, value: str, text: bytes, chance: Random) -> bytes | None:
        """Return a text in the same quotes."""
        found = _QUOTED.match(text)
        if found is None or b"f" in found[1].lower():
            return None
        prefix, quote = found[1].decode(), found[2].decode()
        for _ in range(_TRIES):
            other = self._other_text(value, chance)
            raw = "r" in prefix.lower() and ("\\" in other or quote in other or not other.isprintable())
            coded = "b" in prefix.lower() and any(ord(letter) > 255 for letter in other)
            if other != value and not raw and not coded:
                return _quoted(other, prefix, quote).encode("utf-8", "replace")
        return None

    def _other_text(self, value: str, chance: Random) -> str:
        alike = [text for text in self._texts if len(value) / 2 <= len(text) <= 2 * len(value) + 2]
        if not value or (alike and chance.random() < 0.15):
            return chance.choice(alike or self._texts or ["x"])
        place = chance.randrange(len(value))
        before, letter, after = value[:place], value[place], value[place + 1 :]
        match chance.choice(["drop", "double", "case", "swap", "swap", "letter", "letter"]):
            case "drop":
                return before + after
            case "double":
                return before + letter + letter + after
            case "case":
                return before + letter.swapcase() + after
            case "swap":
                return before + after[:1] + letter + after[1:]
            case _:
                letters = [other for other in "".join(self._texts) if _kind(other) == _kind(letter)]
                return before + chance.choice(letters or [letter]) + after


def _constants(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the literals of a file, without docstrings."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documents:
            yield node


def _kind(letter: str) -> tuple[bool, bool, bool, bool]:
    return letter.isalpha(), letter.isdigit(), letter.isupper(), letter.isspace()


def _decimal(value: float, text: bytes, chance: Random) -> bytes | None:
    """Return a number with as many digits."""
    digits = [place for place, byte in enumerate(text.partition(b"e")[0]) if chr(byte).isdigit()]
    if not digits or value - value != 0:
        return None
    place = chance.choice([*digits, digits[-1], digits[-1]])
    digit = (int(text[place : place + 1]) + chance.choice([1, 9, 2])) % 10
    other = text[:place] + str(digit).encode() + text[place + 1 :]
    return None if float(other.replace(b"_", b"")) == value else other


def _quoted(value: str, prefix: str, quote: str) -> str:
    """Return a literal of the text, escaped as needed in these quotes."""
    if "r" in prefix.lower():
        return f"{prefix}{quote}{value}{quote}"
    escapes = {**_ESCAPES, quote[0]: f"\\{quote[0]}"}
    if len(quote) == 3:
        del escapes["\n"]
    coded = "b" in prefix.lower()
    parts = [
        escapes.get(letter)
        or (letter if letter.isprintable() and not (coded and not letter.isascii()) else _escape(letter))
        if not (letter == "\n" and len(quote) == 3)
        else letter
        for letter in value
    ]
    return f"{prefix}{quote}{''.join(parts)}{quote}"


def _escape(letter: str) -> str:
    number = ord(letter)
    return (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )
