"""Tests without their expectations: they report the values that they would compare, and the harness compares them.

    valued = without_expectations(b"def test_one():\\n    assert one() == 12\\n", "path", "nonce", {"test_one"})
    valued.expected                                # {"path:0": 12}
    read_values(output, "nonce")                   # {"path:0": [12]} from the output of a run of valued.content

Code under test can use the tests as an oracle: it tries changes of its own until the tests pass, or asks them what they
expect. Where nothing is expected it cannot. Nor does it help to forge a result: what has to be said is the right value.

Each assertion that something equals a literal becomes a report of that something; of other assertions the value is
computed and dropped. A value is reported as the builtin value that it is, whatever a class made of it says of itself.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.rollout.altered import equality_sides, parse_tests, test_functions
from lightning_smith.rollout.other_values import Edit, SourceFile, applied

DESCRIPTOR = 9
"""Where reports go in a run: a copy of the standard output, which pytest does not capture."""

_REPORTER = """

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
        return ["other", None]

    try:
        text = json.dumps([site, plain(value)])
    except Exception:
        text = json.dumps([site, ["other", None]])
    os.write(DESCRIPTOR, ("\\nNONCE " + text + "\\n").encode())
"""


class IncomparableError(ValueError):
    """A value that is no builtin one."""


@dataclass(frozen=True)
class Valued:
    """A test file without expectations, and the value that each of its reports has to have, by its site."""

    content: bytes
    expected: Mapping[str, Any]


def without_expectations(source: bytes, path: str, nonce: str, only: Collection[str]) -> Valued | None:
    """The test file with the functions named in `only` reporting what they compare with literals; None if none does.

    `nonce` is a word that marks the reports.
    """
    tree = parse_tests(source)
    if tree is None:
        return None
    file = SourceFile(source)
    edits: list[Edit] = []
    expected: dict[str, Any] = {}
    for function in test_functions(tree):
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if function.name not in only or not isinstance(node, ast.Expr | ast.Assert):
                continue
            start, end = file.range(node)
            if (found := _compared(node)) is not None:
                value, literal = found
                site = f"{path}:{len(expected)}"
                expected[site] = literal
                report = b"_report_%s(%s, (%s))" % (nonce.encode(), ascii(site).encode(), file.text(value))
                edits.append((start, end, report))
            elif isinstance(node, ast.Assert):
                edits.append((start, end, b"(" + file.text(node.test) + b")"))
    reporter = _REPORTER.replace("NONCE", nonce).replace("DESCRIPTOR", str(DESCRIPTOR))
    content = applied(source, edits) + reporter.encode()
    return Valued(content, expected) if expected and parse_tests(content) is not None else None


def _compared(node: ast.stmt) -> tuple[ast.expr, Any] | None:
    """What a statement asserts to be equal to a literal, and the literal's value."""
    sides = equality_sides(node)
    for value, literal in (sides, sides[::-1]) if sides else ():
        try:
            return value, ast.literal_eval(literal)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def read_values(log: bytes, nonce: str) -> dict[str, list[Any]]:
    """Values reported in a log, by their sites; None stands for one that cannot be compared."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
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
    """The value of a report. ValueError, TypeError or KeyError if it is none."""
    kind, content = said
    match kind:
        case "constant":
            return content
        case "int" | "float" | "str":
            return {"int": int, "float": float, "str": str}[kind](content)
        case "bytes":
            return bytes.fromhex(content)
        case "dict":
            return {_value(key): _value(value) for key, value in content}
        case "list" | "tuple" | "set" | "frozenset":
            values = [_value(each) for each in content]
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](values)
        case _:
            raise IncomparableError


def wrong_sites(
    expected: Mapping[str, Any], right: Mapping[str, Sequence[Any]], found: Mapping[str, Sequence[Any]]
) -> tuple[list[str], list[str]]:
    """Sites at which right code reports what is expected and other code something else, or nothing."""
    wrong, silent = list[str](), list[str]()
    for site, value in expected.items():
        if not right.get(site) or any(each != (value,) for each in right[site]):
            continue
        if not found.get(site):
            silent.append(site)
        elif any(each is not None and each != (value,) for each in found[site]):
            wrong.append(site)
    return wrong, silent
