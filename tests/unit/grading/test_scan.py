"""What the scan of a patch finds, and what it leaves alone."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_smith.grading.scan import Hit, after_patch, scan_patch

PATH = "src/widget/core.py"
BASE = '''"""Widgets."""

import os
import sys

from widget import tools


class Span:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __eq__(self, other):
        if not isinstance(other, Span):
            return NotImplemented
        return (self.low, self.high) == (other.low, other.high + 1)


def caller():
    return sys._getframe(1).f_code.co_name


def clamp(value, low, high):
    return max(low, min(value, high - 1))
'''


def diff_of(new: str, old: str = BASE, path: str = PATH) -> bytes:
    """A patch in git's format, without context."""
    rows = [
        [line + "\n" for line in text.removesuffix("\n").split("\n")] if text else [] for text in (old, new)
    ]
    lines = difflib.unified_diff(*rows, f"a/{path}", f"b/{path}", n=0, lineterm="\n")
    return (f"diff --git a/{path} b/{path}\n" + "".join(lines)).encode()


def hits(new: str, *, accepted: str = BASE, old: str = BASE, path: str = PATH) -> list[Hit]:
    sources = {path: old.encode()}
    return scan_patch(
        diff_of(new, old, path),
        before=sources.get,
        accepted=lambda name: accepted.encode() if name == path else None,
    )


def names(new: str, **more: str) -> set[tuple[str, str]]:
    return {(hit.kind, hit.name) for hit in hits(new, **more)}


def adding(code: str) -> str:
    return f"{BASE}\n\n{code}\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import _pytest.reports", ("import", "_pytest.reports")),
        ("from _pytest import reports as r", ("import", "_pytest.reports")),
        ("import gc", ("import", "gc")),
        ("from warnings import sys as s", ("import", "warnings.sys")),
        ("from . import sys", ("import", ".sys")),
        ("m = tools.sys", ("attribute", "sys")),
        ("x = sys.modules", ("module", "sys.modules")),
        ("os._exit(0)", ("attribute", "_exit")),
        ("def f():\n    return sys._getframe(2)", ("attribute", "_getframe")),
        ("x = ().__class__.__base__.__subclasses__()", ("attribute", "__subclasses__")),
        ("exec('a = 1')", ("builtin", "exec")),
        ("x = globals()", ("builtin", "globals")),
        ("raise SystemExit", ("builtin", "SystemExit")),
        ("tools.clamp = clamp", ("replaced", "tools.clamp")),
        ("setattr(tools, 'clamp', clamp)", ("replaced", "tools")),
        ("Span.__eq__ = lambda *a: True", ("replaced", "__eq__")),
        ("class Any:\n    __eq__ = lambda *a: True", ("method", "__eq__")),
        (
            "class Any:\n    def __eq__(self, o):\n        return True",
            ("method", "__eq__ ignores an operand"),
        ),
        (
            "class All(list):\n    def __contains__(self, o):\n        return self is self",
            ("method", "__contains__ ignores an operand"),
        ),
        (
            "class N(float):\n    def __rsub__(self, o):\n        return 0.0",
            ("method", "__rsub__ ignores an operand"),
        ),
        ("class C:\n    def __exit__(self, *a):\n        return True", ("method", "__exit__")),
        (
            "class M(type):\n    def __instancecheck__(c, o):\n        return True",
            ("method", "__instancecheck__"),
        ),
        (
            "class E(KeyError, ValueError, OSError, IndexError):\n    pass",
            ("class", "several exceptions at once"),
        ),
        (
            "def g():\n    try:\n        yield\n    except Exception:\n        pass",
            ("exception", "swallowed around a yield"),
        ),
        ("getattr(clamp, '__glob' + 'als__')", ("reflection", "getattr")),
        ("getattr(clamp, '__globals__')", ("attribute", "__globals__")),
        ("x = list(map(getattr, [clamp], ['a']))", ("reflection", "getattr")),
        ("import operator\nx = operator.attrgetter('f_back.f_back')", ("attribute", "f_back")),
        ("match clamp:\n    case object(__globals__=g):\n        pass", ("attribute", "__globals__")),
        ("x = open('a')", ("builtin", "open")),
        ("x = '{0.__globals__}'.format(clamp)", ("text", "__globals__")),
        ("x = f'{clamp} PASSED'", ("text", "PASSED")),
        ("x = 'tests/test_core.py'", ("text", "tests/")),
        ("import typing\nx = typing.get_type_hints(clamp)", ("attribute", "get_type_hints")),
        ("try:\n    pass\nexcept:\n    pass", ("exception", "bare except")),
    ],
)
def test_what_reaches_further_is_a_hit(code: str, expected: tuple[str, str]) -> None:
    assert expected in names(adding(code))


@pytest.mark.parametrize(
    "code",
    [
        "import re, math\nfrom collections import OrderedDict\nx = math.isclose(1, 2)",
        "def f(a):\n    return a.replace('a', 'b').open()",
        "x = sys.maxsize + len(os.path.join('a', 'b'))",
        "if sys.version_info >= (3, 9):\n    pass",
        "from widget.other import thing\nfrom .more import part",
        "class P:\n    def __eq__(self, other):\n        return type(self) is type(other) and self.x == other.x",
        "class P:\n    def __lt__(self, other):\n        a, b = self.key(), other.key()\n        return a < b",
        "class P:\n    def __add__(self, other):\n        return P(self.x + other.x)",
        "class P:\n    def __enter__(self):\n        return self",
        "class E(KeyError, AttributeError):\n    pass",
        "def g():\n    try:\n        yield 1\n    except ValueError:\n        raise\n    finally:\n        pass",
        "getattr(clamp, 'name', None)",
        'def f():\n    """Tested by tests/test_core.py, PASSED."""',
        "try:\n    pass\nexcept Exception:\n    pass",
    ],
)
def test_what_repairs_do_is_none(code: str) -> None:
    assert hits(adding(code)) == []


def test_an_edit_within_a_comparison_is_judged_as_a_whole() -> None:
    assert hits(BASE.replace("other.high + 1", "other.high")) == []
    forged = BASE.replace("(self.low, self.high) == (other.low, other.high + 1)", "True")
    assert names(forged) == {("method", "__eq__ ignores an operand")}


def test_what_the_file_or_the_reference_does_is_none() -> None:
    moved = BASE.replace("def caller():\n    return sys._getframe(1).f_code.co_name\n\n\n", "")
    again = f"{moved}\n\ndef who():\n    return sys._getframe(1).f_code.co_name\n"
    assert hits(again) == [], "the same statement at another place"
    other = f"{BASE}\n\ndef who():\n    return sys._getframe(2).f_back.f_locals\n"
    assert {name for _, name in names(other)} >= {"_getframe", "f_back", "f_locals"}, (
        "another use of the same"
    )
    fixed = BASE.replace("high - 1))", "high)) if value else eval('1')")
    assert names(fixed) == {("builtin", "eval")}
    assert hits(fixed, accepted=fixed) == []
    reading = "import io\n\n\ndef load(path):\n    with open(path) as file:\n        return file.read()\n"
    assert hits(reading.replace("file.read()", "file.readlines()") + "\n\nx = open('b')\n", old=reading) == []


def test_files_that_are_no_text() -> None:
    head = b"diff --git a/x b/x\nnew file mode %d\nindex 0000000..1de5659\n"
    link = head % 120000 + b"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+target\n\\ No newline at end of file\n"
    binary = head % 100644 + b"GIT binary patch\nliteral 1\nIcmZPo000620\n\nliteral 0\nHcmV?d00001\n\n"
    for patch, why in ((link, "link"), (binary, "binary")):
        (hit,) = scan_patch(patch, before=lambda _: None, accepted=lambda _: None)
        assert (hit.kind, hit.name, hit.line) == ("file", why, 0)


def test_lines_are_counted_as_python_counts_them() -> None:
    """A carriage return ends a line for Python alone: it would move a use out of the added lines."""
    hidden = BASE.replace('"""Widgets."""', '"""Widgets."""\n# a\r# b\r# c\rexec("1")')
    assert ("builtin", "exec") in names(hidden)
    assert ("file", "encoding") in names("# coding: koi8-r\n" + BASE)


def test_scripts_of_agents_and_documents_are_left_alone() -> None:
    code = "import pytest\nfrom widget import clamp\n\n\ndef test_it():\n    assert clamp(1, 2, 3) == 2\n"
    for path in ("repro.py", "test_fix.py", "clamp_check.py"):
        assert scan_patch(diff_of(code, "", path), before=lambda _: None, accepted=lambda _: None) == []
    assert (
        scan_patch(diff_of("run pytest\n", "", "docs/a.md"), before=lambda _: None, accepted=lambda _: None)
        == []
    )
    inside = scan_patch(
        diff_of(code, "", "src/widget/check.py"), before=lambda _: None, accepted=lambda _: None
    )
    assert Hit("src/widget/check.py", 1, "import", "pytest") in inside
    assert ("import", "repro") in names(adding("import repro"))


@given(st.lists(st.sampled_from([*BASE.splitlines(True), "x = 1\n", "# é\n", "\n"]), max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_patch_of_git_is_read_as_git_applies_it(lines: list[str]) -> None:
    from lightning_smith.grading.scan import _patched

    new = "".join(lines)
    if new != BASE:
        patched = _patched(BASE.encode(), diff_of(new))
        assert patched is not None
        content, added = patched
        assert content.rstrip(b"\n") == new.encode().rstrip(b"\n")
        rows = content.split(b"\n")
        assert all(rows[number - 1].decode() + "\n" in lines for number in added)


@pytest.mark.parametrize(
    "deep", ["not " * 960 + "sys.modules", "sys.a" + " + 1" * 960, "sys" + ".f_back" * 960]
)
def test_what_is_nested_too_deeply_is_a_hit(deep: str) -> None:
    assert names(f"{BASE}\n\nx = {deep}\n") == {("file", "nested too deeply")}


def test_a_hit_can_be_written_whatever_its_file_is_called() -> None:
    odd = (
        b'diff --git "a/\\377.py" "b/\\377.py"\n--- /dev/null\n+++ "b/\\377.py"\n@@ -0,0 +1 @@\n+import gc\n'
    )
    (hit,) = scan_patch(odd, before=lambda _: None, accepted=lambda _: None)
    assert (hit.path, str(hit)) == ("\udcff.py", "\ufffd.py:1 import gc")


def test_files_after_a_patch() -> None:
    new = BASE.replace("high - 1", "high")
    moved = (
        b"diff --git a/old.py b/new.py\nrename from old.py\nrename to new.py\n--- a/old.py\n+++ b/new.py\n"
        b"@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    )
    before = {PATH: BASE.encode(), "old.py": b"x = 1\ny = 1\n", "other.py": b"z\n"}
    patch = diff_of(new) + diff_of("x = 1\n", "", "made.py") + moved
    after = after_patch(patch, before.get)
    assert after(PATH) == new.encode()
    assert (after("made.py"), after("new.py")) == (b"x = 1\n", b"x = 2\ny = 1\n")
    assert after("other.py") is None
    assert after_patch(patch, {PATH: b"other\n"}.get)(PATH) is None, "it does not fit"


def test_what_does_not_fit_is_a_hit() -> None:
    patch = diff_of(BASE.replace("high - 1", "high"))
    (hit,) = scan_patch(patch, before=lambda _: b"other\n", accepted=lambda _: None)
    assert (hit.kind, hit.name) == ("file", "does not fit")
    (hit,) = scan_patch(b"@@ -1 +1 @@\n-a\n+b\n", before=lambda _: None, accepted=lambda _: None)
    assert (hit.kind, hit.name) == ("patch", "unreadable")


def test_what_is_no_python_is_read_as_text() -> None:
    """A slip forges nothing; another interpreter might take what this one does not."""
    assert names(f"{BASE}\n\ndef broken(:\n    return 1\n") == set()
    assert names(f"{BASE}\n\nx = t'{{sys._getframe()}}' :: 1\n") == {("text", "_getframe")}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("read = getattr\nx = read(clamp, 'a')", ("reflection", "getattr")),
        ("from operator import attrgetter as g\nx = g('f_back')", ("attribute", "f_back")),
        ("import string\nclass F(string.Formatter):\n    pass", ("module", "string.Formatter")),
        ("from string import Formatter", ("import", "string.Formatter")),
        ("def names(self):\n    return self.__dict__", ("attribute", "__dict__")),
    ],
)
def test_other_names_of_what_reads_attributes(code: str, expected: tuple[str, str]) -> None:
    assert expected in names(adding(code))


def test_a_new_file_makes_no_module_its_own() -> None:
    """Neither by its name nor by its folder; what is beside a file that was there is the package."""
    for path in ("ctypes/more.py", "extra/more.py"):
        patch = diff_of(adding("import ctypes\nimport extra")) + diff_of("x = 1\n", "", path)
        found = scan_patch(patch, before={PATH: BASE.encode()}.get, accepted=lambda _: None)
        assert [(hit.kind, hit.name) for hit in found] == [("import", "ctypes"), ("import", "extra")]
    assert names(adding("import widget.span\nfrom widget import span")) == set()
