"""Tests with altered expectations: right code fails every one, whatever the assertion looks like."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_smith.rollout.altered import alter, functions_in

RIGHT = '''\
"""Doc."""
import unittest

import pytest


def one():
    return 1


def fail(kind):
    raise kind("x")


ASSERTIONS
'''

ASSERTIONS = [
    "assert one() == 1",
    "assert 1 == one(), 'why'",
    "assert -1 == -one()",
    "assert one() == 1.0",
    "assert 'é' + 'b' == 'éb'  # é",
    'assert str(one()) == """1"""',
    "assert str(one())[1:] == ''",
    r"assert chr(92) + 'n' == '\\n'",
    "assert bytes([97]) == b'a'",
    "assert [one(), 'b'] == [1, 'b']",
    "assert {'a': one()} == {'a': 1}",
    "assert (one(),) == (1,)",
    "assert [] == list()",
    "assert one() == one()",
    "assert one() == pytest.approx(1)",
    "assert one() is not None",
    "assert None is None",
    "assert one() in (1, 2)",
    "assert one() not in (3, 2)",
    "assert one() != 2",
    "assert one() < 2 and True",
    "assert one() <= 1",
    "assert one() > 0",
    "assert 0 < one() < 2",
    "assert not (one() == 2)",
    "assert not(one() - 1)",
    "assert one()",
    "assert (one() and\n            one())",
    "assert isinstance(one(), int)",
    "with pytest.raises(ValueError):\n        fail(ValueError)",
    "with pytest.raises(Exception, match='x'): fail(ArithmeticError)",
    "one()",
    "for _ in [1]:\n        one()",
    "with open(__file__) as file:\n        assert file.read().count('ever') == 1",
    "if one() == 1:\n        return\n    assert one() == 2",
]
METHODS = [
    "self.assertEqual(one(), 1)",
    "self.assertEqual(one(), one(), 'why')",
    "self.assertListEqual([one()], [1])",
    "self.assertAlmostEqual(one(), 1.0)",
    "self.assertNotEqual(one(), 2)",
    "self.assertTrue(one())",
    "self.assertFalse(not one())",
    "self.assertIsNone(None)",
    "self.assertIn(one(), [1])",
    "self.assertGreaterEqual(one(), 1)",
    "self.assertRegex(str(one()), '1')",
    "self.assertRaises(KeyError, fail, KeyError)",
    "with self.assertRaisesRegex(KeyError, 'x'): fail(KeyError)",
]

NAMES = re.compile(r"def (test_\w+)")


def outcomes(folder: Path, source: str) -> dict[str, str]:
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "--tb=no",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
    ]
    done = subprocess.run(
        [*command, "--rootdir=.", "test_it.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    return {name: status for status, name in re.findall(r"^([A-Z]+) test_it.py::(\S+)", done.stdout, re.M)}


def test_right_code_fails_every_altered_test(tmp_path: Path) -> None:
    functions = [f"def test_{number}():\n    {text}\n" for number, text in enumerate(ASSERTIONS)]
    methods = [f"    def test_m{number}(self):\n        {text}\n" for number, text in enumerate(METHODS)]
    extra = (
        "async def helper(): pass\n\n\ndef test_one_line(): one()\n\n\n"
        "def test_documented():\n    'Doc.'\n    one()\n"
    )
    tests = "\n\n".join([*functions, extra, "class TestIt(unittest.TestCase):\n" + "\n".join(methods)])
    source = RIGHT.replace("ASSERTIONS", tests)
    names = NAMES.findall(source)
    altered = alter(source.encode(), "seed", names)
    assert altered is not None and altered == alter(source.encode(), "seed", names[::-1])
    assert altered != alter(source.encode(), "other", names)
    before = outcomes(tmp_path, source)
    after = outcomes(tmp_path, altered.decode())
    # The one that returns before its assertion is not altered where it matters, and reads as such.
    returns = f"test_{len(ASSERTIONS) - 1}"
    assert set(before.values()) == {"PASSED"} and len(before) == len(ASSERTIONS) + len(METHODS) + 2
    assert {name for name in before if after[name] != "FAILED"} == {returns}


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"x = 1\n",
        b"def broken(:\n",
        b"\xff\xfe",
        b"# coding: latin-1\ndef test_a(): assert '\xe9'\n",
        b"\0",
    ],
)
def test_nothing_to_alter(source: bytes) -> None:
    assert alter(source, "seed", {"test_a", "broken"}) is None


def test_files_of_this_repository_stay_python() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        altered = alter(path.read_bytes(), "seed", NAMES.findall(path.read_text()))
        assert altered is None or ast.parse(altered)


def test_line_ends_and_names_are_kept() -> None:
    source = (
        b"def test_a():\r\n\tassert f() == 1\r\n\r\n\r\nclass TestB:\r\n\tdef test_c(self):\r\n\t\tf()\r\n"
    )
    altered = alter(source, "seed", {"test_a", "test_c"})
    assert altered is not None and b"def test_a():\r\n\tassert f() == " in altered
    assert b"\tdef test_c(self):\r\n\t\tassert len(str()) == " in altered


def test_each_function_is_altered_alike_whichever_others_are() -> None:
    source = (
        b"def check(x):\n    assert x == 1\n\n\ndef test_a():\n    assert f() == 2\n\n\n"
        b"def test_b():\n    assert f() == 3\n\n\nclass TestC:\n    def test_b(self):\n        check(f())\n"
    )
    both = alter(source, "seed", {"test_a", "test_b", "check_all"})
    one, other = alter(source, "seed", {"test_a"}), alter(source, "seed", ["test_b"])
    assert both is not None and one is not None and other is not None
    lines = [text.splitlines() for text in (source, one, other, both)]
    assert lines[1][5] == lines[3][5] != lines[0][5] == lines[2][5], "test_a"
    assert lines[2][9] == lines[3][9] != lines[0][9] == lines[1][9], "test_b"
    assert len(lines[2]) == len(lines[3]) == len(lines[0]) + 1 == len(lines[1]) + 1, "the method of that name"
    assert {tuple(text[:2]) for text in lines} == {tuple(lines[0][:2])}, "what is no test stays"
    assert alter(source, "seed", ()) is None
    assert functions_in(source) == {"check", "test_a", "test_b"} and functions_in(b"def") == set()
    helped = alter(source, "seed", (), {"check", "test_b", "other"})
    assert helped is not None and helped.splitlines()[1] != lines[0][1]
    assert helped.splitlines()[2:9] == lines[0][2:9] and len(helped.splitlines()) == len(lines[0])


def test_what_is_equal_to_everything_passes_altered_tests(tmp_path: Path) -> None:
    """So that it is noticed: an altered expectation is another value, never another relation than equality."""
    source = (
        "import unittest\n\n\nclass Any:\n    __eq__ = lambda self, other: True\n\n\nANY, two = Any(), 2\n\n\n"
        "def f(x=None):\n    return ANY\n\n\n"
        "def test_a():\n    assert f() == 1\n\n\ndef test_b():\n    assert f() == two\n\n\n"
        "def test_c():\n    assert two == f()\n\n\ndef test_d():\n    assert f(two) == list([two])\n\n\n"
        "class TestE(unittest.TestCase):\n    def test_e(self):\n        self.assertEqual(f(), two)\n"
    )
    altered = alter(source.encode(), "seed", NAMES.findall(source))
    assert altered is not None and len(altered.splitlines()) == len(source.splitlines())
    found = outcomes(tmp_path, altered.decode())
    assert len(found) == 5 and set(found.values()) == {"PASSED"}
    honest = altered.decode().replace("return ANY", "return two")
    assert set(outcomes(tmp_path, honest).values()) == {"FAILED"}
