"""Tests with altered expectations, which right code fails and only a forged result passes.

    altered = alter(b"def test_one():\\n    assert one() == 12\\n", "seed", 3)
    altered.content                 # perhaps ... assert one() == 21

The code under test shares a process with pytest, so it can forge the result of every test that it knows by name. Told
apart it is by runs in which some tests have expectations that are wrong, in the same files, under the same names. A
forger cannot know which: whether 12 or 21 is expected of `one` is what the task is about. What passes with a wrong
expectation was forged. The same goes for code that makes its results equal to everything, and for code that reads the
expected value off the test.

The file, a seed and the number of a variant decide for each test function whether it is altered, for each of its
assertions, and for each row of its parameters: in an altered function some assertions stay as they are, so that what
passes with one right assertion is noticed. An expectation is altered where it is written: in the assertion, in a
variable that is compared and nothing else, or in a parameter. A literal gets another value (`other_values.py`), a
comparison without one its opposite, and another exception is awaited. Inputs are left alone where an expectation can be
found: for others the task says nothing.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from lightning_smith.grading.other_values import Edit, SourceFile, Values, applied

ALTERATIONS_VERSION = 5
"""Raise it when the same seed could alter a file differently."""

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
_PAIRS = (
    ("assertTrue", "assertFalse"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIn", "assertNotIn"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"),
    ("assertRegex", "assertNotRegex"),
    ("assertNotEqual", "assertEqual"),
    ("assertNotAlmostEqual", "assertAlmostEqual"),
)
_OPPOSITE_METHODS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_EQUALITY = re.compile(r"assert_?\w*(equal|equals|same|close)\w*|eq_", re.I)
_LOOSE = re.compile("not|almost|close|same", re.I)
_CONTAINING = ("assertIn", "assertNotIn", "assertRegex")
_CHECKING = re.compile(r"_?(assert|check|verify|expect|ensure|compare)", re.I)
_RAISING = re.compile(r"raises|assertRaises(Regex)?")
_WARNING = re.compile(r"warns|assertWarns(Regex)?")
_EXCEPTIONS = (
    "AttributeError",
    "ImportError",
    "IndexError",
    "KeyError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "StopIteration",
    "TypeError",
    "ValueError",
    "ZeroDivisionError",
)
"""None is made from another, so that what is raised passes for two of them only if it was made to."""
_WARNINGS = (
    "DeprecationWarning",
    "FutureWarning",
    "ImportWarning",
    "RuntimeWarning",
    "SyntaxWarning",
    "UnicodeWarning",
    "UserWarning",
)
_PLAIN = (ast.Call, ast.Name, ast.Attribute, ast.Subscript)
"""What needs no brackets after `not`."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TYPES = ("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")
_BUILDERS = re.compile(
    r"array|bytearray|bytes|complex|date|datetime|Decimal|dedent|dict|Fraction|frozenset|list|OrderedDict|set|time"
    r"|timedelta|tuple"
)
_SIMPLE = (ast.Expr, ast.Assign)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Altered:
    """An altered test file.

    `soft` has names of its functions that are altered in a way that right code of another kind than the reference
    solution's might pass: another exception, part of a message, an inequality. Other alterations contradict what they
    replace, so that nothing passes both.
    """

    content: bytes
    soft: frozenset[str]


@dataclass(frozen=True)
class _Change:
    edits: tuple[Edit, ...]
    soft: bool = False


_Site = Callable[[], list[_Change]]
"""Ways to alter one expectation, drawn anew with each call."""


def functions_in(source: bytes) -> set[str]:
    """Return names of the functions and methods of a test file, not of those within others; none if it is not
    Python.
    """
    tree = parse_tests(source)
    return {each.name for each in test_functions(tree)} if tree is not None else set()


def alter(
    source: bytes, seed: str, number: int, only: Collection[str] | None = None, *, helpers: bool = False
) -> Altered | None:
    """Return a test file with some expectations altered: variant `number`, the same for the same seed.

    Of the tests those alone are altered that are named in `only`, if it is given, and each the same way as without it;
    of functions that are no tests none, unless `helpers` are altered as well.

    None if nothing is: by lot, or since the file has none; files that are not Python in UTF-8 are among those.
    """
    tree = parse_tests(source)
    if tree is None or source.startswith(b"\xef\xbb\xbf"):
        return None
    file = SourceFile(source)
    # Who knows the file as it was written knows the answers anyway; nobody else can draw these lots.
    seed += f" {hashlib.sha256(source).hexdigest()}"
    values = Values(file, tree)
    modules = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names = {function.name for function in test_functions(tree)}
    changes: list[tuple[str, list[_Change]]] = []
    for function in test_functions(tree):
        if function.name.startswith("test"):
            if only is not None and function.name not in only:
                continue
        elif not helpers and function.name not in (only or ()):
            continue
        drawn = _Expectations(file, values, function, seed, number, names, modules).drawn()
        changes.append((function.name, drawn))
    content = _content(source, changes)
    if parse_tests(content) is None:
        # Rarely, an edit makes no Python: that of its function is left out.
        changes = [each for each in changes if parse_tests(_content(source, [each])) is not None]
        content = _content(source, changes)
    soft = frozenset(name for name, drawn in changes if any(change.soft for change in drawn))
    return Altered(content, soft) if content != source and parse_tests(content) is not None else None


def _content(source: bytes, changes: Iterable[tuple[str, list[_Change]]]) -> bytes:
    return applied(source, (edit for _, drawn in changes for change in drawn for edit in change.edits))


def parse_tests(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a test file, None if it is no Python in UTF-8."""
    try:
        source.decode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tests' own escapes
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _functions(node: ast.AST) -> Iterator[_Function]:
    """Yield the outermost functions of a statement: it itself, or those of a class or of a branch."""
    if isinstance(node, _FUNCTIONS):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _functions(child)


def test_functions(tree: ast.Module) -> Iterator[_Function]:
    """The functions and methods of a test file, not those within others."""
    for node in tree.body:
        yield from _functions(node)


test_functions.__test__ = False  # pytest would take it for a test


def equality_sides(node: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """Both sides of a statement that asserts that they are equal, by `assert` or by a method."""
    if isinstance(node, ast.Assert):
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return test.left, test.comparators[0]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and len(node.value.args) >= 2:
        name = _name_of(node.value)
        if _EQUALITY.fullmatch(name) and not _LOOSE.search(name):
            return node.value.args[0], node.value.args[1]
    return None


def awaited_exceptions(node: ast.expr) -> frozenset[str] | None:
    """Return names of the exceptions that a context awaits, None if it awaits none, or some that have no names."""
    if not isinstance(node, ast.Call) or not _RAISING.fullmatch(_name_of(node)) or len(node.args) != 1:
        return None
    awaited = node.args[0]
    parts = awaited.elts if isinstance(awaited, ast.Tuple) else [awaited]
    names = [getattr(part, "attr", getattr(part, "id", "")) for part in parts]
    return frozenset(names) if all(name[:1].isupper() for name in names) else None


class _Expectations:
    """What a function of a test file expects, and how it could expect something else.

    `names` are the functions of the file, `modules` the modules that it has imported.
    """

    def __init__(
        self,
        file: SourceFile,
        values: Values,
        function: _Function,
        seed: str,
        number: int,
        names: set[str],
        modules: set[str],
    ) -> None:
        self._file, self._values, self._function, self._number = file, values, function, number
        seed += f" {function.name} {function.lineno}"
        self._seed, self._chance = seed, Random(f"{seed} {number}")
        self._names, self._modules = names, modules
        self._nodes = [node for statement in function.body for node in ast.walk(statement)]
        self._compared = {
            id(name) for side in self._sides() for name in ast.walk(side) if isinstance(name, ast.Name)
        }

    def drawn(self) -> list[_Change]:
        """Changes by lot: none, or those of some expectations; beside them some rows of parameters."""
        chance, test = self._chance, self._function.name.startswith("test")
        rows = self._rows()
        sites = [site for node in self._nodes for site in self._site(node)]
        if not sites and not rows and test:
            sites = [site for node in self._nodes for site in self._plain(node)]
        share = 0.25 if rows else 0.5
        wanted = [site for site in sites if chance.random() < 0.5] or sites[:1]
        chosen = wanted if chance.random() < share else []
        chosen += [row for row in rows if chance.random() < 0.5]
        return [chance.choice(changes) for site in chosen if (changes := site())]

    # ------------------------------------------------------------------------------------------ sites

    def _site(self, node: ast.AST) -> Iterator[_Site]:
        if isinstance(node, ast.Assert):
            yield lambda: self._condition(node.test)
        elif isinstance(node, ast.Call):
            name = _name_of(node)
            if self._call_is_known(node, name):
                yield lambda: self._call(node, name)
        elif isinstance(node, ast.For):
            for element in self._loop(node):
                yield lambda element=element: self._literal(element)
        elif isinstance(node, ast.Assign) and self._is_expected(node):
            yield lambda: self._literal(node.value)

    def _call_is_known(self, node: ast.Call, name: str) -> bool:
        known = name in _OPPOSITE_METHODS or any(
            kind.fullmatch(name) for kind in (_EQUALITY, _RAISING, _WARNING)
        )
        return bool(node.args) and (known or name in self._names or _CHECKING.match(name) is not None)

    def _condition(self, node: ast.expr) -> list[_Change]:
        """Alter what `assert` is given."""
        start, end = self._file.range(node)
        text = self._file.bytes[start:end]
        if isinstance(node, ast.Constant):
            return []
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            blanks = re.compile(rb"not[ \t]*").match(self._file.bytes, start)
            return [_Change(((start, blanks.end(), b""),))] if blanks else []
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return self._condition(self._chance.choice(node.values))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._comparison(node.left, node.ops[0], node.comparators[0])
        negated = b"not " + text if isinstance(node, _PLAIN) else b"not (" + text + b")"
        found = [_Change(((start, end, negated),))]
        if isinstance(node, ast.Call) and _name_of(node) == "isinstance" and len(node.args) == 2:
            return found + 2 * self._other_type(node.args[1])
        if isinstance(node, _PLAIN):
            found.append(_Change(((end, end, b" == " + self._values.literal(self._chance)),)))
        return found

    def _other_type(self, node: ast.expr) -> list[_Change]:
        named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        other = self._chance.choice([name for name in _TYPES if name not in named])
        return [_Change(((*self._file.range(node), other.encode()),), soft=True)]

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> list[_Change]:
        file = self._file
        if isinstance(operator, ast.Eq):
            # The relation stays: what is equal to everything must be equal to another value as well.
            literal = _Change(((*file.range(right), self._values.literal(self._chance)),))
            return self._other_value(right, left) or [literal]
        pattern, opposite = _OPPOSITE_OPERATORS[type(operator)]
        gap = file.range(left)[1], file.range(right)[0]
        place = re.search(pattern.encode(), file.bytes[slice(*gap)])
        flipped = []
        if place is not None:
            flipped = [_Change(((gap[0] + place.start(), gap[0] + place.end(), opposite.encode()),))]
        if isinstance(operator, ast.Is | ast.IsNot):
            return flipped
        operand = left if isinstance(operator, ast.In | ast.NotIn) else right
        other = self._literal(operand, soft=True)
        # What contains everything must meet what is not in the right value.
        return other if other and isinstance(operator, ast.In) else flipped + 2 * other

    def _call(self, node: ast.Call, name: str) -> list[_Change]:
        """Alter a call of unittest, pytest, numpy or a helper that asserts."""
        end = self._file.range(node.func)[1]
        if _RAISING.fullmatch(name) or _WARNING.fullmatch(name):
            return self._raising(node, _EXCEPTIONS if _RAISING.fullmatch(name) else _WARNINGS)
        flipped = []
        if name in _OPPOSITE_METHODS:
            flipped = [_Change(((end - len(name), end, _OPPOSITE_METHODS[name].encode()),))]
        if _EQUALITY.fullmatch(name) and "not" not in name.lower() and len(node.args) >= 2:
            literal = _Change(((*self._file.range(node.args[1]), self._values.literal(self._chance)),))
            return self._other_value(node.args[1], node.args[0]) or [literal]
        if name in _CONTAINING and len(node.args) >= 2:
            operand = node.args[1] if name == "assertRegex" else node.args[0]
            other = self._literal(operand, soft=True)
            return other if other and name == "assertIn" else flipped + 2 * other
        if name == "assertIsInstance" and len(node.args) >= 2:
            return flipped + 2 * self._other_type(node.args[1])
        if flipped:
            return flipped
        return [change for part in node.args for change in self._literal(part, soft=True)]

    def _raising(self, node: ast.Call, pool: tuple[str, ...]) -> list[_Change]:
        """Await an exception that is unrelated to the one that is awaited, or another message."""
        start, end = self._file.range(node.args[0])
        awaited = self._file.bytes[start:end].decode()
        other = self._other_exception([name for name in pool if not _related(name, awaited)])
        found = [_Change(((start, end, other.encode()),), soft=True)] if other else []
        messages = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        return found + [change for message in messages for change in self._literal(message, soft=True)]

    def _other_exception(self, others: list[str]) -> str:
        """One for each variant: what is raised is not the same a second time by accident."""
        order = Random(self._seed).sample(others, len(others))
        return order[self._number % len(order)] if order else ""

    def _other_value(self, *sides: ast.expr) -> list[_Change]:
        """Give the expected side another value: the first that calls nothing and has a literal, else one in a call."""
        for side in sides:
            if not _calls(side) and (found := self._literal(side)):
                return found
        return self._literal(sides[0], soft=True)

    def _literal(self, node: ast.expr, *, soft: bool = False) -> list[_Change]:
        """Another value for a literal of an expression; `soft` if it may be more than the expected value."""
        places = (
            [node]
            if not isinstance(node, ast.Call)
            else [*node.args, *(part.value for part in node.keywords)]
        )
        for place in self._chance.sample(places, len(places)):
            if isinstance(place, ast.Call):
                if found := self._literal(place, soft=True):
                    return found
            elif (edits := self._values.edits(place, self._chance)) is not None:
                return [_Change(tuple(edits), soft or place is not node)]
        return []

    # ---------------------------------------------------------------- values that are written elsewhere

    def _sides(self) -> Iterator[ast.expr]:
        """Sides of comparisons that call nothing."""
        for node in self._nodes:
            if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
                sides = [node.test.left, *node.test.comparators]
            elif isinstance(node, ast.Call) and _EQUALITY.fullmatch(_name_of(node)):
                sides = node.args[:2]
            else:
                continue
            yield from (side for side in sides if not _calls(side))

    def _only_compared(self, name: str) -> bool:
        """Return whether a variable is compared and nothing else, so that another value is no other input."""
        loads = [
            id(node)
            for node in self._nodes
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]
        return bool(loads) and self._compared.issuperset(loads)

    def _is_expected(self, node: ast.Assign) -> bool:
        target = node.targets[0]
        if len(node.targets) > 1 or not isinstance(target, ast.Name) or _calls(node.value):
            return False
        stores = [
            other
            for other in self._nodes
            if isinstance(other, ast.Name) and other.id == target.id and isinstance(other.ctx, ast.Store)
        ]
        return len(stores) == 1 and self._only_compared(target.id)

    def _loop(self, node: ast.For) -> list[ast.expr]:
        """Return what the rows of a loop over a literal have for the variables that are compared and nothing else."""
        if not isinstance(node.iter, ast.List | ast.Tuple):
            return []
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        names = [target.id if isinstance(target, ast.Name) else "" for target in targets]
        single = not isinstance(node.target, ast.Tuple)
        return [element for row in node.iter.elts for element in self._expected_of(row, names, single)]

    def _rows(self) -> list[_Site]:
        """Return a site for each row of `pytest.mark.parametrize` that holds an expected value."""
        sites: list[_Site] = []
        for decorator in self._function.decorator_list:
            if (
                not isinstance(decorator, ast.Call)
                or _name_of(decorator) != "parametrize"
                or len(decorator.args) < 2
            ):
                continue
            names, single = _parameters(decorator.args[0])
            rows = decorator.args[1]
            for row in rows.elts if isinstance(rows, ast.List | ast.Tuple) else []:
                if found := self._expected_of(row, names, single):
                    element = self._chance.choice(found)
                    sites.append(lambda element=element: self._literal(element))
        return sites

    def _expected_of(self, row: ast.expr, names: list[str], single: bool) -> list[ast.expr]:
        """Elements of a row that are compared and nothing else."""
        if isinstance(row, ast.Call) and _name_of(row) == "param":
            elements = row.args
        elif single:
            elements = [row]
        else:
            elements = row.elts if isinstance(row, ast.Tuple | ast.List) else []
        if len(elements) != len(names):
            return []
        return [
            element
            for element, name in zip(elements, names, strict=True)
            if name and self._only_compared(name)
        ]

    # ------------------------------------------------------------------------------ tests that assert nothing

    def _plain(self, node: ast.AST) -> Iterator[_Site]:
        """Expect something of a statement of a test without any assertion."""
        if (
            isinstance(node, _SIMPLE)
            and isinstance(node.value, ast.Call)
            and self._file.indent(node) is not None
        ):
            yield lambda: self._expecting(node)

    def _expecting(self, node: ast.Expr | ast.Assign) -> list[_Change]:
        start, end = self._file.range(node)
        indent = self._file.indent(node) or b""
        line_end = b"\r\n" if b"\r\n" in self._file.bytes else b"\n"
        found = []
        if "pytest" in self._modules:
            context = b"with pytest.raises(%s):" % self._other_exception(list(_EXCEPTIONS)).encode()
            inside = indent + (b"\t" if b"\t" in indent else b"    ")
            found.append(_Change(((start, start, context + line_end + inside),), soft=True))
        literal = self._values.literal(self._chance)
        if isinstance(node, ast.Expr):
            found.append(_Change(((start, start, b"assert "), (end, end, b" == " + literal))))
        elif isinstance(target := node.targets[0], ast.Name):
            more = line_end + indent + b"assert %s == %s" % (target.id.encode(), literal)
            found.append(_Change(((end, end, more),)))
        return found


def _name_of(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _calls(node: ast.expr) -> bool:
    """Return whether an expression calls more than what puts literals together."""
    return any(isinstance(part, ast.Call) and not _builds(part) for part in ast.walk(node))


def _builds(node: ast.Call) -> bool:
    """Return whether a call makes a value of literals: `"\\n".join([...])`, `Decimal("1.5")`."""
    of_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
    return of_text or _BUILDERS.fullmatch(_name_of(node)) is not None


def _parameters(node: ast.expr) -> tuple[list[str], bool]:
    """Return names of `parametrize`, and whether each row is the value of the only one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = [name.strip() for name in node.value.split(",") if name.strip()]
        return names, len(names) == 1
    if isinstance(node, ast.List | ast.Tuple):
        return [str(part.value) if isinstance(part, ast.Constant) else "" for part in node.elts], False
    return [], False


def _related(name: str, awaited: str) -> bool:
    """Return whether an exception could be one of those that are awaited, as far as their names tell."""
    one = getattr(builtins, name)
    words = set(re.findall(r"\w+", awaited))
    others = [getattr(builtins, word) for word in words if isinstance(getattr(builtins, word, None), type)]
    return name in words or any(issubclass(one, other) or issubclass(other, one) for other in others)
