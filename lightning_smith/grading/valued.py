"""Tests without their expectations: they report the values that they would compare, and the harness compares them.

    valued = without_expectations(b"def test_one():\\n    assert one() == 12\\n", "path", "nonce", {"test_one"})
    valued.sites                                   # {"path:0": Equal(12)}
    read_values(output, "nonce")                   # {"path:0": [(12,)]} from the output of a run of valued.content

Code under test can use the tests as an oracle: it tries changes of its own until the tests pass, or asks them what they
expect. Where nothing is expected, and nothing fails, it cannot. Nor does it help to forge a result: what has to be said
is the right value.

An assertion that two things are equal becomes a report of one of them, and a context that awaits an exception one of
what was raised; of other assertions the value is computed and dropped, and no exception leaves a test. A value is
reported as the builtin value that it is, whatever a class made of it says of itself.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.grading.altered import awaited_exceptions, equality_sides, parse_tests, test_functions
from lightning_smith.grading.other_values import Edit, SourceFile, applied

DESCRIPTOR = 9
"""Where reports go in a run: a copy of the standard output, which pytest does not capture."""

_REPORTER = """\
def _report_NONCE(site, value):
    import json
    import os

    def plain(value):
        if value is None or isinstance(value, bool):
            return ["constant", value]
        if isinstance(value, int):
            return ["int", int.__repr__(value)]
        if isinstance(value, float):
            return ["float", float.__repr__(value)]
        if isinstance(value, str):
            return ["str", str.__str__(value)]
        if isinstance(value, bytes):
            return ["bytes", bytes.hex(value)]
        if isinstance(value, dict):
            return ["dict", [[plain(key), plain(dict.__getitem__(value, key))] for key in dict.__iter__(value)]]
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return [kind.__name__, [plain(each) for each in kind.__iter__(value)]]
        text = repr(value)
        return ["repr", text] if " at 0x" not in text and len(text) < 10000 else ["other", None]

    try:
        text = json.dumps([site, plain(value)])
    except Exception:
        text = json.dumps([site, ["other", None]])
    os.write(DESCRIPTOR, ("\\nNONCE " + text + "\\n").encode())


class _raising_NONCE:
    value = exception = type = None

    def __init__(self, site):
        self.site = site

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.value = self.exception = value
        self.type = kind
        _report_NONCE(self.site, [each.__name__ for each in kind.__mro__] if kind else [])
        return True

    def match(self, pattern):
        return True


def _quiet_NONCE(function):
    import functools
    import inspect

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def quiet(*arguments, **more):
            try:
                await function(*arguments, **more)
            except BaseException:
                pass

    else:

        @functools.wraps(function)
        def quiet(*arguments, **more):
            try:
                function(*arguments, **more)
            except BaseException:
                pass

    return quiet


"""


class IncomparableError(ValueError):
    """A value that is no builtin one, and has no words of its own."""


@dataclass(frozen=True)
class Repr:
    """What an object that is no builtin value says of itself."""

    text: str


Reported = tuple[Any] | None
"""A reported value, None for one that cannot be compared."""


@dataclass(frozen=True)
class Equal:
    """A site at which a literal was expected."""

    literal: Any

    def met(self, found: Sequence[Reported], right: Sequence[Reported]) -> bool:
        return all(each is None or each == (self.literal,) or _has_repr(each) for each in found)


@dataclass(frozen=True)
class Raises:
    """A site at which one of the exceptions of these names was awaited."""

    names: frozenset[str]

    def met(self, found: Sequence[Reported], right: Sequence[Reported]) -> bool:
        return all(each is not None and not self.names.isdisjoint(each[0]) for each in found)


@dataclass(frozen=True)
class AsRightCode:
    """A site at which something else was expected, which right code alone knows."""

    def met(self, found: Sequence[Reported], right: Sequence[Reported]) -> bool:
        return None in found or list(found) == list(right)


Site = Equal | Raises | AsRightCode


@dataclass(frozen=True)
class Valued:
    """A test file without expectations, and what was expected at each site of its reports."""

    content: bytes
    sites: Mapping[str, Site]


def without_expectations(source: bytes, path: str, nonce: str, only: Collection[str]) -> Valued | None:
    """Return the test file with the functions named in `only` reporting what they compare; None if none does.

    So do the functions that are no tests: what they assert, they do for others. `nonce` is a word that marks the
    reports.
    """
    tree = parse_tests(source)
    if tree is None:
        return None
    file = SourceFile(source)
    edits: list[Edit] = []
    sites: dict[str, Site] = {}

    def report(name: str, site: Site, value: bytes = b"") -> bytes:
        key = f"{path}:{len(sites)}"
        sites[key] = site
        return b"%s_%s(%s%s)" % (
            name.encode(),
            nonce.encode(),
            ascii(key).encode(),
            b", (%s)" % value if value else b"",
        )

    contexts = _named_contexts(tree)
    for function in test_functions(tree):
        indent, test = file.indent(function), function.name.startswith("test")
        if indent is None or (test and function.name not in only):
            continue
        if function.name in only:
            start, _ = file.range(function)
            edits.append((start, start, b"@_quiet_%s\n%s" % (nonce.encode(), indent)))
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if isinstance(node, ast.With):
                for item in node.items:
                    names = awaited_exceptions(item.context_expr)
                    if isinstance(item.context_expr, ast.Name):
                        names = contexts.get(item.context_expr.id)
                    if names is not None:
                        edits.append((*file.range(item.context_expr), report("_raising", Raises(names))))
            elif isinstance(node, ast.Expr | ast.Assert):
                if (found := _compared(node)) is not None:
                    value = b", ".join(map(file.text, found[0]))
                    edits.append((*file.range(node), report("_report", found[1], value)))
                elif isinstance(node, ast.Assert):
                    edits.append((*file.range(node), b"(" + file.text(node.test) + b")"))
    reporter = _REPORTER.replace("NONCE", nonce).replace("DESCRIPTOR", str(DESCRIPTOR)).encode()
    at, content = file.first_code(tree), applied(source, edits)
    content = content[:at] + reporter + content[at:]
    return Valued(content, sites) if sites and parse_tests(content) is not None else None


def _named_contexts(tree: ast.Module) -> dict[str, frozenset[str]]:
    """Variables of a file that hold a context that awaits exceptions, and their names."""
    found: dict[str, frozenset[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and (names := awaited_exceptions(node.value)) is not None:
            found |= {target.id: names for target in node.targets if isinstance(target, ast.Name)}
    return found


def _compared(node: ast.stmt) -> tuple[tuple[ast.expr, ...], Site] | None:
    """Return what a statement asserts to be equal to a literal, or to be in something, or else both sides of an
    equality; and what is expected of it.
    """
    if (
        isinstance(node, ast.Assert)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.In)
    ):
        member = node.test.left
        # A literal is looked for in words that other right code may choose otherwise.
        return ((member,), AsRightCode()) if not isinstance(member, ast.Constant | ast.JoinedStr) else None
    sides = equality_sides(node)
    for value, literal in (sides, sides[::-1]) if sides else ():
        try:
            return (value,), Equal(ast.literal_eval(literal))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return (sides, AsRightCode()) if sides else None


def read_values(log: bytes, nonce: str) -> dict[str, list[Reported]]:
    """Return values reported in a log, by their sites."""
    found: defaultdict[str, list[Reported]] = defaultdict(list)
    mark = f"{nonce} ".encode()
    for line in log.split(b"\n"):
        if not line.startswith(mark):
            continue
        try:
            site, said = json.loads(line.removeprefix(mark))
            value = (_value(said),)
        except IncomparableError:
            value = None
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # no report, whoever wrote it
        found[str(site)].append(value)
    return dict(found)


def _value(said: Sequence[Any]) -> Any:
    """Return the value of a report. ValueError, TypeError or KeyError if it is none."""
    kind, content = said
    match kind:
        case "constant":
            return content
        case "int" | "float" | "str":
            return {"int": int, "float": float, "str": str}[kind](content)
        case "repr":
            return Repr(str(content))
        case "bytes":
            return bytes.fromhex(content)
        case "dict":
            return {_value(key): _value(value) for key, value in content}
        case "list" | "tuple" | "set" | "frozenset":
            values = [_value(each) for each in content]
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](values)
        case _:
            raise IncomparableError


def _has_repr(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_repr, value)) or any(map(_has_repr, value.values()))
    return isinstance(value, Repr) or (
        isinstance(value, list | tuple | set | frozenset) and any(map(_has_repr, value))
    )


Runs = Sequence[Mapping[str, Sequence[Reported]]]
"""What right code reports at each site, by run."""


def compared_sites(sites: Mapping[str, Site], right: Runs) -> dict[str, list[Reported]]:
    """Return what right code reports, of the sites at which it reports what was expected, the same in all its runs."""
    found: dict[str, list[Reported]] = {}
    for key, site in sites.items():
        first, *others = (list(run.get(key, ())) for run in right)
        same = first and None not in first and all(other == first for other in others)
        if same and site.met(first, first):
            found[key] = first
    return found


def wrong_sites(
    sites: Mapping[str, Site], right: Runs, found: Mapping[str, Sequence[Reported]]
) -> tuple[list[str], list[str]]:
    """Return the sites at which code reports what was not expected, and those at which it reports nothing."""
    compared = compared_sites(sites, right)
    silent = [key for key in compared if not found.get(key)]
    wrong = [
        key for key, first in compared.items() if found.get(key) and not sites[key].met(found[key], first)
    ]
    return wrong, silent
