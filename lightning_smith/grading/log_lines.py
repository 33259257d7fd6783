"""Lines in which test runners name a test and how it ended, and whether a parser of logs reads an id back from them.

    forms = readable_forms(parse)                     # which lines this parser reads at all
    odd_reason("t.py::test_p[x PASSED]", parse, forms)  # "read as ... from ..."

Parsers of official harnesses split lines at blanks and look for status words, so an id with blanks in its
parameters comes back cut, with another test's status, or not at all: whoever grades by it grades something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from lightning_smith.grading.statuses import grader_text, read_statuses

Parser = Callable[[str], Mapping[str, str]]
"""Statuses (`PASSED`, `FAILED`, ...) by test id from the text of a log."""

PASSED, FAILED = "PASSED", "FAILED"
STATUSES = (PASSED, FAILED)

LINE_FORMS: dict[str, Callable[[str, str], str]] = {
    "verbose": lambda test, status: f"{test} {status} [ 50%]",
    "xdist": lambda test, status: f"[gw0] {status} {test} ",
    "summary": lambda test, status: f"{status} {test}{' - assert 1 == 2' if status == FAILED else ''}",
    "bare_summary": lambda test, status: f"{status} {test}",
    "unittest": lambda test, status: f"{test} ... {'ok' if status == PASSED else 'FAIL'}",
    "unittest_heading": lambda test, status: f"{test} ... ok" if status == PASSED else f"FAIL: {test}",
}
"""By name: `pytest --verbose`, the same with pytest-xdist, `pytest -rA` with and without an error's message,
`python -m unittest --verbose`, and the latter's headings of failures."""

PYTEST_FORMS = frozenset({"verbose", "xdist", "summary", "bare_summary"})
OWN_FORMS = ("summary", "bare_summary")
"""What the grader of rollouts reads: it runs `pytest -rA`."""

_PLAIN_TESTS = {True: "tests/test_a.py::test_one", False: "test_one (tests.test_a.Case)"}

PLAIN_ID = r"[A-Za-z0-9_./-]+(?:::[A-Za-z0-9_.-]+)+(?:\[[!-Z\\^-~]+\])?"
"""Pytest ids that every parser of pytest's lines reads back, unless a status word is in them: no blanks, ASCII,
parameters between one pair of brackets. The same in the syntax of Python and of RE2."""

STATUS_WORDS = "PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS"


def readable_forms(parse: Parser) -> tuple[str, ...]:
    """Return names of the forms from which a parser reads a plain id with its status."""
    return tuple(
        name for name in LINE_FORMS if _misreading(_PLAIN_TESTS[name in PYTEST_FORMS], parse, name) is None
    )


def read_own(log: str, known: Sequence[str] = ()) -> Mapping[str, str]:
    """Return what the grader of rollouts reads, which knows the ids of its task."""
    return read_statuses(grader_text(log.encode("utf-8", "replace")).encode("utf-8", "replace"), known)


def odd_reason(test: str, parse: Parser, forms: Sequence[str]) -> str | None:
    """Return why an id cannot be graded by a parser that reads these forms; None if it can.

    The parser must read exactly the id with its status back from each form; where pytest runs the tests, the
    grader of rollouts must as well. An id whose parameters never end was cut by whoever wrote it down.
    """
    if not forms:
        return "the profile's parser reads no known form of lines"
    if is_cut(test):
        return "its parameters are cut off"
    for form in forms:
        if (found := _misreading(test, parse, form)) is not None:
            return f"the profile's parser reads {found}"
    if PYTEST_FORMS.issuperset(forms):
        for form in OWN_FORMS:
            if (found := _misreading(test, lambda log: read_own(log, (test,)), form)) is not None:
                return f"the grader of rollouts reads {found}"
    return None


def shadowing(test: str, tests: Collection[str]) -> str | None:
    """Another id of the same task that a line with this one and an error's message could as well be about."""
    ends = (match.start() for match in re.finditer(" - ", test))
    return next((test[:end] for end in ends if test[:end] in tests), None)


def is_cut(test: str) -> bool:
    """Return whether a pytest id opens a bracket for parameters and does not end with the closing one."""
    name = test.partition("::")[2]
    return "[" in name and not name.endswith("]")


def _misreading(test: str, parse: Parser, form: str) -> str | None:
    """Return what a parser makes of an id in one form, if that is anything but the id with its status."""
    for status in STATUSES:
        line = LINE_FORMS[form](test, status)
        found = dict(parse(line + "\n"))
        if found != {test: status}:
            return f"{found} from {line!r}"
    return None
