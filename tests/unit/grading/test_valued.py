"""Tests without expectations: what they report, how it is read, and whom it speaks against."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.grading.valued import (
    DESCRIPTOR,
    AsRightCode,
    Equal,
    Raises,
    Repr,
    Site,
    read_values,
    without_expectations,
    wrong_sites,
)

NONCE = "n0123456789abcde"
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(st.integers(), max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


def values_of(source: str, only: set[str], folder: Path) -> tuple[dict[str, Site], dict[str, list[Any]]]:
    """What a file's reports have to be, and what they are when its functions are called."""
    valued = without_expectations(source.encode(), "t.py", NONCE, only)
    assert valued is not None
    calls = "\n".join(f"{name}()" for name in sorted(only))
    (folder / "t.py").write_bytes(valued.content + f"\n{calls}\n".encode())
    log = folder / "log"
    with log.open("wb") as file:
        command = ["bash", "-c", f"exec {DESCRIPTOR}>&1; exec {sys.executable} t.py"]
        subprocess.run(command, cwd=folder, stdout=file, check=True, env={"PATH": os.environ["PATH"]})
    return dict(valued.sites), read_values(log.read_bytes(), NONCE)


def test_what_is_compared_with_a_literal_is_reported(tmp_path: Path) -> None:
    source = (
        "import pytest\nclass odd: Failure = LookupError\nclass Self:\n"
        "    def assertEqual(self, one, two): pass\n    assertAlmostEqual = assertEqual\n\n\n"
        "def f(x): return x\n\n\n"
        "def test_a(self=Self()):\n    'Doc.'\n    assert f(1) == 2, 'why'\n    assert [3] == f([3])\n"
        "    self.assertEqual(f('é'), 'e')\n    self.assertAlmostEqual(f(1.5), 1.5)\n    assert f(0)\n"
        "    assert f(1) == f(2)\n    for n in (1, 2):\n        assert f(n) == 1\n"
        "    assert (f(1) ==\n        {'a': (1, None)})\n"
        "    with pytest.raises((KeyError, odd.Failure), match='x') as info:\n        int('x')\n    info.match('y')\n"
        "    with pytest.raises(ValueError):\n        f(1)\n    raise SystemExit\n\n\n"
        "def test_b():\n    assert f(1) == 1\n"
    )
    expected, found = values_of(source, {"test_a"}, tmp_path)
    assert list(expected.values()) == [
        *(Equal(2), Equal([3]), Equal("e"), AsRightCode(), Equal(1), Equal({"a": (1, None)})),
        *(Raises(frozenset({"KeyError", "Failure"})), Raises(frozenset({"ValueError"}))),
    ]
    values = [found[site] for site in expected]
    assert values[:6] == [[(1,)], [([3],)], [("é",)], [((1, 2),)], [(1,), (2,)], [(1,)]]
    assert [value[0][:1] for (value,) in values[6:]] == [["ValueError"], []]
    text = (tmp_path / "t.py").read_text()
    assert "assert f(1) == 1\n" in text and "(f(0))" in text
    assert "assertAlmostEqual(f(1.5), 1.5)" in text, "what is only near is left alone"


@given(VALUES)
def test_a_value_is_read_back(value: object) -> None:
    valued = without_expectations(b"def test_a():\n    assert f() == 1\n", "t.py", NONCE, {"test_a"})
    assert valued is not None
    names: dict[str, Any] = {}
    exec(valued.content, names)
    read, write = os.pipe()
    saved = os.dup(DESCRIPTOR) if _is_open(DESCRIPTOR) else None
    os.dup2(write, DESCRIPTOR)
    try:
        names[f"_report_{NONCE}"]("site", value)
    finally:
        os.close(DESCRIPTOR) if saved is None else os.dup2(saved, DESCRIPTOR)
        os.close(write)
    with os.fdopen(read, "rb") as file:
        ((found,),) = read_values(file.read(), NONCE)["site"]
    assert found == value and type(found) is type(value)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_class_has_no_say_in_what_is_reported(tmp_path: Path) -> None:
    source = (
        "class Text(str):\n    def __repr__(self): return 'right'\n    __str__ = __repr__\n"
        "    __eq__ = lambda *a: True\n    __hash__ = str.__hash__\n\n\nclass Any:\n    __eq__ = lambda *a: True\n"
        "    __repr__ = lambda self: 'any'\n\n\n"
        "def test_a():\n    assert Text('wrong') == 'right'\n    assert Any() == 'right'\n"
        "    assert [Any()] == ['right']\n"
    )
    expected, found = values_of(source, {"test_a"}, tmp_path)
    assert list(found.values()) == [[("wrong",)], [(Repr("any"),)], [([Repr("any")],)]]
    right = {
        site: [("right",)] if each == Equal("right") else [(["right"],)] for site, each in expected.items()
    }
    assert wrong_sites(expected, [right, right], found) == (["t.py:0"], [])


@pytest.mark.parametrize("source", [b"", b"def test_a():\n    assert f()\n", b"def broken(:\n", b"\xff"])
def test_nothing_to_report(source: bytes) -> None:
    assert without_expectations(source, "t.py", NONCE, {"test_a", "broken"}) is None


def test_only_what_right_code_reports_speaks_against_a_patch() -> None:
    sites = {"a": Equal(1), "b": Equal(2), "c": Equal(3), "d": Equal(4)}
    right = {"a": [(1,)], "b": [(2,), (2,)], "c": [(9,)], "d": []}
    assert wrong_sites(sites, [right, right], {"a": [(1,)], "b": [(2,)]}) == ([], [])
    assert wrong_sites(sites, [right, right], {"a": [(1,), (5,)], "b": [None]}) == (["a"], [])
    assert wrong_sites(sites, [right, right], {"c": [(8,)]}) == ([], ["a", "b"])
    assert wrong_sites(sites, [right, {}], {"c": [(8,)]}) == ([], []), "right code does not do it again"


def test_what_is_raised_or_only_right_code_knows() -> None:
    sites = {"a": Raises(frozenset({"KeyError"})), "b": AsRightCode()}
    right = {"a": [(["KeyError", "LookupError"],)], "b": [(1,), ("x",)]}
    honest = {"a": [(["Own", "KeyError", "TypeError"],)], "b": [(1,), ("x",)]}
    assert wrong_sites(sites, [right, right], honest) == ([], [])
    assert wrong_sites(sites, [right, right], {**honest, "b": [(1,), None]}) == ([], [])
    assert wrong_sites(sites, [right, right], {"a": [([],)], "b": [(1,)]}) == (["a", "b"], [])
    assert wrong_sites(sites, [right, right], {"a": [None], "b": [(1,), ("x",)]}) == (["a"], [])


@pytest.mark.parametrize(
    "line",
    [b"x", b"[]", b"[1]", b'["a", ["int", "x"]]', b'["a", ["list", 3]]', b'["a", ["set", [["list", []]]]]'],
)
def test_what_is_no_report_is_left_out(line: bytes) -> None:
    log = NONCE.encode() + b" " + line + b"\n" + NONCE.encode() + b' ["b", ["int", "7"]]\nmore\n'
    assert read_values(log, NONCE) == {"b": [(7,)]}


def test_files_of_this_repository_stay_python() -> None:
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        names = {
            node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
        }
        valued = without_expectations(path.read_bytes(), "t.py", NONCE, names)
        assert valued is None or ast.parse(valued.content)


def test_what_helpers_assert_is_reported_too(tmp_path: Path) -> None:
    source = (
        "import pytest\nfails = pytest.raises(KeyError)\n\n\ndef check(one, two):\n    assert one == two\n\n\n"
        "def test_a():\n    check('a'.upper(), 'A')\n    with fails:\n        {}['x']\n"
    )
    expected, found = values_of(source, {"test_a"}, tmp_path)
    assert list(expected.values()) == [AsRightCode(), Raises(frozenset({"KeyError"}))]
    values = [found[site] for site in expected]
    assert values[0] == [(("A", "A"),)] and values[1][0] is not None and values[1][0][0][0] == "KeyError"
