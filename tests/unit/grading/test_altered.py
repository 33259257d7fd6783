"""Tests with altered expectations: right code fails them, whatever the assertion looks like, and passes all else."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_smith.grading.altered import Altered, alter, functions_in

RIGHT = '''\
"""Doc."""
import unittest
import warnings

import pytest


def one():
    return 1


def fail(kind):
    raise kind("x")


def check(value, expected):
    if value != expected:
        raise AssertionError(value)


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
    "expected = [1, 2]\n    assert [one(), 2] == expected",
    "for given, expected in [(1, 2), (2, 3)]:\n        assert given + 1 == expected",
    "assert 'n' in 'one'",
    "assert one() == int('1')",
    "with pytest.warns(UserWarning): warnings.warn('x')",
    "check(one(), 1)",
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


FUNCTIONS = re.compile(r"(?ms)^ *(?:async )?def (test_\w+)(.*?)(?=^ *(?:async )?def |^class |\Z)")
VARIANTS = 8


def variants(source: str | bytes, count: int = VARIANTS) -> Iterator[Altered]:
    """Those in which something is altered."""
    data = source if isinstance(source, bytes) else source.encode()
    for number in range(count):
        if (altered := alter(data, "tests/test_it.py", number)) is not None:
            yield altered


def bodies(source: str) -> dict[str, str]:
    """Text of each test function by its name."""
    return {match[1]: match[2].strip() for match in FUNCTIONS.finditer(source)}


def test_right_code_fails_what_is_altered_and_passes_all_else(tmp_path: Path) -> None:
    functions = [f"def test_{number}():\n    {text}\n" for number, text in enumerate(ASSERTIONS)]
    methods = [f"    def test_m{number}(self):\n        {text}\n" for number, text in enumerate(METHODS)]
    tests = "\n\n".join([*functions, "class TestIt(unittest.TestCase):\n" + "\n".join(methods)])
    source = RIGHT.replace("ASSERTIONS", tests)
    before = bodies(source)
    assert len(before) == len(ASSERTIONS) + len(METHODS)
    assert set(outcomes(tmp_path, source).values()) == {"PASSED"}
    # The one that returns before its assertion is not altered where it matters, and reads as such.
    silent = f"test_{len(ASSERTIONS) - 1}"
    failed: Counter[str] = Counter()
    for count, altered in enumerate(variants(source, 40)):
        if count >= 4 and all(failed[name] for name in before if name != silent):
            break
        after, found = bodies(altered.content.decode()), outcomes(tmp_path, altered.content.decode())
        helper = altered.content.decode().partition("def test_0")[0] != source.partition("def test_0")[0]
        for name, text in before.items():
            method = f"TestIt::{name}" if name.startswith("test_m") else name
            if after[name] == text and not helper:
                assert found[method] == "PASSED", text
            failed[name] += found[method] == "FAILED"
    assert [before[name] for name in before if not failed[name]] == [before[silent]]
    assert count < 20 and sum(failed.values()) > count * len(before) / 4


def test_the_same_variant_is_the_same_and_others_are_not() -> None:
    source = b"".join(b"def test_%d():\n    assert f() == %d\n" % (n, n + 10) for n in range(8))
    found = [alter(source, "path", number) for number in range(VARIANTS)]
    assert found == [alter(source, "path", number) for number in range(VARIANTS)]
    contents = {each.content for each in found if each is not None}
    assert len(contents) == VARIANTS
    assert contents.isdisjoint(
        {each.content for each in (alter(source, "other", n) for n in range(VARIANTS)) if each}
    )


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
    assert list(variants(source)) == []


def test_files_of_this_repository_stay_python() -> None:
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for altered in variants(path.read_bytes(), 2):
            assert ast.parse(altered.content) and altered.content != path.read_bytes()


def test_line_ends_and_names_are_kept() -> None:
    source = b"def test_a():\r\n\tassert f() == 12\r\n\r\n\r\nclass TestB:\r\n\tdef test_c(self):\r\n\t\tx = f()\r\n"
    contents = [altered.content for altered in variants(source)]
    assert contents and all(b"\n" not in content.replace(b"\r\n", b"") for content in contents)
    assert all(content.startswith(b"def test_a():\r\n\tassert f() == ") for content in contents)
    assert any(b"\t\tx = f()\r\n\t\tassert x == " in content for content in contents)


def test_an_altered_function_keeps_some_of_its_assertions() -> None:
    """So that what passes wherever one assertion passes is noticed."""
    source = "def test_a():\n" + "".join(f"    assert f({n}) == {n + 10}\n" for n in range(6))
    kept = [
        sum(one == other for one, other in zip(source.splitlines(), text.splitlines(), strict=True)) - 1
        for text in (altered.content.decode() for altered in variants(source, 40))
    ]
    assert len(kept) > 10 and all(0 <= count < 6 for count in kept)
    assert sum(count > 0 for count in kept) > len(kept) * 0.8


def test_each_row_of_parameters_has_its_own_lot() -> None:
    rows = [f"    ({n}, {n + 100}),\n" for n in range(8)]
    source = (
        f"@pytest.mark.parametrize('given, expected', [\n{''.join(rows)}])\n"
        "def test_a(given, expected):\n    assert f(given) == expected\n"
    )
    changed: Counter[tuple[int, ...]] = Counter()
    for altered in variants(source, 40):
        lines = altered.content.decode().splitlines()
        found = [ast.literal_eval(line.strip().rstrip(",")) for line in lines[1:9]]
        assert [given for given, _ in found] == list(range(8)), "inputs are left alone"
        changed[tuple(n for n, (_, expected) in enumerate(found) if expected != n + 100)] += 1
    assert len(changed) > 30 and not altered_more_than_half(changed)


def altered_more_than_half(changed: Counter[tuple[int, ...]]) -> bool:
    """Whether far more rows are altered than half of them."""
    return sum(len(rows) * count for rows, count in changed.items()) > 0.65 * 8 * changed.total()


def test_a_value_that_is_an_input_too_is_left_alone() -> None:
    source = (
        "def test_a():\n    data = [1, 2]\n    expected = [3, 4]\n    result = f(data)\n"
        "    assert result == expected\n    assert g(data) == data\n"
    )
    texts = [altered.content.decode() for altered in variants(source, 40)]
    assert all("data = [1, 2]\n" in text for text in texts)
    assert any("expected = [3, 4]\n" not in text for text in texts)


def test_what_is_equal_to_everything_passes_altered_tests(tmp_path: Path) -> None:
    """So that it is noticed: an altered expectation is another value, seldom another relation than equality."""
    source = (
        "import unittest\n\n\nclass Any:\n    __eq__ = lambda self, other: True\n"
        "    __contains__ = lambda self, other: True\n\n\nANY = Any()\n\n\ndef f(x=None):\n    return ANY\n\n\n"
        "def test_a():\n    assert f() == 1\n\n\ndef test_b():\n    assert f() == list([2])\n\n\n"
        "def test_c():\n    assert 'two' in f()\n\n\ndef test_d():\n    two = 'x'\n    assert f() == two\n\n\n"
        "class TestE(unittest.TestCase):\n    def test_e(self):\n        self.assertEqual(f(), {'a': 2})\n"
    )
    forged: Counter[str] = Counter()
    for altered in variants(source):
        found = outcomes(tmp_path, altered.content.decode())
        after = bodies(altered.content.decode())
        for name, text in bodies(source).items():
            forged[name] += after[name] != text and found.get(name, found.get(f"TestE::{name}")) == "PASSED"
    assert all(forged[name] > 0 for name in bodies(source)), forged


def test_an_exception_becomes_an_unrelated_one_and_another_in_each_variant() -> None:
    source = "def test_a():\n    with pytest.raises((KeyError, UnicodeDecodeError)):\n        f()\n"
    found = list(variants(source))
    awaited = [re.findall(r"raises\((.*)\):", altered.content.decode())[0] for altered in found]
    assert len(set(awaited)) == len(awaited) > 2
    for name in awaited:
        kind = getattr(builtins, name)
        assert not issubclass(kind, (KeyError, UnicodeDecodeError)) and not issubclass(KeyError, kind)
        assert not issubclass(UnicodeDecodeError, kind)
    assert all(altered.soft == {"test_a"} for altered in found), "other code may raise something that is both"


def test_what_contradicts_the_right_value_is_not_soft() -> None:
    source = (
        "def test_a():\n    assert f() == 12\n\n\ndef test_b():\n    assert not f()\n\n\n"
        "def test_c():\n    assert 'bad name' in f()\n"
    )
    soft = [altered.soft for altered in variants(source, 30)]
    assert {"test_c"} in soft and set().union(*soft) == {"test_c"}


def test_some_functions_alone_are_altered_and_each_as_ever() -> None:
    source = (
        b"def check(x):\n    assert x == 12\n\n\ndef test_a():\n    assert f() == 23\n\n\n"
        b"def test_b():\n    assert f() == 34\n\n\nclass TestC:\n    def test_b(self):\n        assert g() == 45\n"
    )
    assert functions_in(source) == {"check", "test_a", "test_b"} and functions_in(b"def") == set()
    for number in range(VARIANTS):
        whole = alter(source, "seed", number)
        lines = whole.content.splitlines() if whole is not None else source.splitlines()
        part = alter(source, "seed", number, {"test_b"})
        found = part.content.splitlines() if part is not None else source.splitlines()
        assert found[:8] == source.splitlines()[:8] and found[8:] == lines[8:]
        assert lines[1] == b"    assert x == 12", "no test"
    helped = [alter(source, "seed", number, (), helpers=True) for number in range(VARIANTS)]
    assert any(each is not None and each.content.splitlines()[1] != b"    assert x == 12" for each in helped)
    assert all(each is None or each.content.splitlines()[2:] == source.splitlines()[2:] for each in helped)
