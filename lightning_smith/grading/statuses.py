"""Which test ended how, read from a log of pytest.

read_statuses(log) -> {"tests/test_a.py::test_one[a - b]": "PASSED", ...}
read_unittest(log, known) reads a log of `python -m unittest --verbose` instead.

Two kinds of lines are read: those of the short summary (`pytest -rA`), `STATUS id - reason`, and those of
`pytest --verbose`, `id STATUS [ 50%]`. Ids may hold blanks, " - ", brackets and status words. Only LF ends a
line; colours, links and other escapes count for nothing.

A subtest that failed fails its test, whatever else is said of it. The summary names it as `SUBFAILED[message] (i=2) id
- reason` (pytest 9) or `[message] (i=2) SUBFAIL id - reason` (pytest-subtests).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

START_MARK = ">>>>> Start Test Output"
END_MARK = ">>>>> End Test Output"
_MARK = ">>>>> "

PASSING = frozenset({"PASSED", "XFAIL"})
"""Statuses of a test that passed, as the official harnesses count."""

FAILING = frozenset({"FAILED", "ERROR"})

WORST_FIRST = ("ERROR", "FAILED", "SKIPPED", "XPASS", "XFAIL", "PASSED")
"""Of two statuses of one test (it passed, its teardown failed) the worse one counts."""

_MAX_LINE = 5_000
"""Characters; a longer line is no result unless known ids are that long. Printed to keep the reader busy, it could have
a million places at which an id may end."""

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements (CSI)
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # links and titles (OSC)
    r"|\x1b[@-Z\\-_]"
)
_STATUS = re.compile("|".join(WORST_FIRST))
_SUMMARY_LINE = re.compile(f"({_STATUS.pattern}) (.+)")
_VERBOSE_END = re.compile(r"( \(.*\))? *(\[ *\d+%\])?")
_SUMMARY_HEADER = re.compile(r"=+ short test summary info =+")
_COUNT = r"\d+ (?:subtests )?[a-z]+"
_COUNTS = re.compile(rf"(=+ )?(no tests ran|{_COUNT}(, {_COUNT})*) in [\d.]+s( \([\d:]+\))?( =+)?")
_FAILURES = re.compile(r"(\d+) (?:subtests )?(?:failed|errors?)\b")
_SUBTEST = re.compile(r"SUBFAIL(?:ED)?(?![A-Z])(?P<rest>.*)|.*[\])] SUBFAIL (?P<after>.*)")
_HEADING = re.compile("(ERROR|FAIL): (.+)")
_UNITTEST_STATUSES = {
    "ok": "PASSED",
    "expected failure": "XFAIL",
    "unexpected success": "XPASS",
    "skipped": "SKIPPED",
    "FAIL": "FAILED",
    "ERROR": "ERROR",
}
_UNITTEST_STATUS = re.compile("(?:ok|expected failure|unexpected success|FAIL|ERROR)$|skipped(?= )")
_UNITTEST_END = re.compile(r"(OK|FAILED)( \(.*\))?")
_FOLDED_SKIP = re.compile(r"\[\d+\] ")


def read_statuses(log: bytes, known: Collection[str] = ()) -> dict[str, str]:
    """Status by test id, from what stands between the markers of an eval script, else from the whole log.

    `known` ids settle where an id ends and a reason begins, should a line leave that open.
    """
    limit = max(_MAX_LINE, 2 * max(map(len, known), default=0))
    parts = split_log(plain_text(log))
    subtests = set(_failed_subtests(parts[1], limit, known))
    before, summary, _ = ([line for line in part if len(line) <= limit] for part in parts)
    verbose = list(_verbose(before if before else summary))
    ids = {*known, *(test for test, _ in verbose)}
    listed = list(_listed(summary, ids))
    if any(status == "PASSED" for _, status in listed):
        # The summary lists every test that passed, so a line elsewhere that claims more is none of pytest's.
        verbose = [(test, status) for test, status in verbose if status != "PASSED"]
    statuses: dict[str, str] = {}
    for test, status in [*listed, *verbose, *((test, "FAILED") for test in subtests)]:
        known_status = statuses.get(test, WORST_FIRST[-1])
        statuses[test] = min(status, known_status, key=WORST_FIRST.index)
    return statuses


def read_unittest(log: bytes, known: Collection[str]) -> dict[str, str]:
    """Status by test id in a log of `unittest --verbose`, of `known` ids alone: whatever else is no id of theirs.

    A line is an id with its status; headings of failures name the id too. A log without the last line of a run
    that agrees with these says nothing.
    """
    text = plain_text(log)
    if START_MARK in text and END_MARK in text:
        text = text.split(START_MARK, 1)[1].split(END_MARK, 1)[0]
    ids, statuses = set(known), dict[str, str]()
    lines = text.split("\n")
    for line in lines:
        test, dots, said = line.rpartition(" ... ")
        if (heading := _HEADING.fullmatch(line)) is not None:
            # The heading of a subtest goes on with its message and parameters.
            test = next((start for start in _starts(heading[2]) if start in ids), heading[2])
            status = _UNITTEST_STATUSES[heading[1]]
        elif dots and (word := _UNITTEST_STATUS.match(said)) is not None:
            status = _UNITTEST_STATUSES[word[0]]
        else:
            continue
        if test in ids:
            statuses[test] = min(status, statuses.get(test, WORST_FIRST[-1]), key=WORST_FIRST.index)
    ends = [match for line in lines if (match := _UNITTEST_END.fullmatch(line)) is not None]
    failed = not FAILING.isdisjoint(statuses.values())
    return statuses if len(ends) == 1 and (ends[0][1] == "FAILED" or not failed) else {}


def plain_text(log: bytes) -> str:
    """Return a log as text: without escapes, undecodable bytes as U+FFFD, CR LF as LF."""
    return _ESCAPE.sub("", log.decode("utf-8", "replace")).replace("\r\n", "\n")


def grader_text(output: bytes) -> str:
    """Return what tests printed, as the grader reads and keeps it: nothing in it looks like a mark of an eval
    script.
    """
    return plain_text(output).replace(_MARK, _MARK.replace(" ", "_")).replace("\r", " ")


def split_log(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return lines of a test run before its short summary, in it, and after it.

    The summary is the last one; it ends at pytest's line of counts. A log without the summary's heading is
    summary from its first line on.
    """
    if START_MARK in text and END_MARK in text:
        text = text.split(START_MARK, 1)[1].split(END_MARK, 1)[0]
    lines = text.split("\n")
    headings = [number for number, line in enumerate(lines) if _SUMMARY_HEADER.fullmatch(line)]
    start = headings[-1] + 1 if headings else 0
    counts = (number for number in range(start, len(lines)) if _COUNTS.fullmatch(lines[number]))
    end = next(counts, len(lines) - 1) + 1
    return lines[:start], lines[start:end], lines[end:]


def is_counts_line(line: str) -> bool:
    """Return whether this is pytest's last line, such as `== 1 failed, 2 passed in 0.05s ==`."""
    return _COUNTS.fullmatch(line) is not None


def has_unnamed_skips(text: str) -> bool:
    """Return whether the summary has skipped tests by their number and the place that skipped them, without their
    ids.
    """
    return any(line.startswith("SKIPPED [") for line in split_log(text)[1])


def failure_count(line: str) -> int:
    """Return how many tests and subtests failed or had an error, as pytest's line of counts says."""
    return sum(int(match[1]) for match in _FAILURES.finditer(line))


def _failed_subtests(lines: Iterable[str], limit: int, known: Collection[str]) -> Iterator[str]:
    """Yield ids of tests of which a subtest failed; all `known` ones if a line does not say which test it is about.

    Messages and parameters come from the tests and from what these call, and may hold anything, also line ends.
    """
    by_start: defaultdict[str, list[str]] = defaultdict(list)
    for test in known:
        by_start[test.partition(" ")[0]].append(test)
    for line in lines:
        match = _SUBTEST.fullmatch(line)
        if match is None or _SUMMARY_LINE.fullmatch(line):
            continue
        found = []
        if len(line) <= limit:
            said = match["rest"] if match["after"] is None else match["after"]
            words = [(word.start(), word[0]) for word in re.finditer(r"[^ ]+", said)]
            for start, word in words:
                found += [test for test in by_start.get(word, ()) if _begins(said, start, test)]
            unknown = (said[start:] for start, word in words if "::" in word)
            found = found or [_without_reason(rest, ()) for rest in islice(unknown, 1)]
        if not found:
            yield from known
            return
        yield from found


def _begins(text: str, start: int, test: str) -> bool:
    """Return whether an id stands at a place of a text, as whole words."""
    return text.startswith(test, start) and text[start + len(test) :][:1] in ("", " ")


def _starts(text: str) -> Iterator[str]:
    """Yield a text without its last words, the longest first."""
    yield text
    while text:
        text = text.rpartition(" ")[0]
        yield text


def _listed(lines: Iterable[str], ids: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield ids and statuses of summary lines."""
    for line in lines:
        match = _SUMMARY_LINE.fullmatch(line)
        if match is None:
            continue
        status, rest = match[1], match[2]
        if status == "PASSED":
            yield rest, status
        elif not (status == "SKIPPED" and _FOLDED_SKIP.match(rest)):
            yield _without_reason(rest, ids), status


def _without_reason(rest: str, ids: Collection[str]) -> str:
    """Return the id at the start of `id - reason`."""
    ends = [match.start() for match in re.finditer(" - ", rest)] + [len(rest)]
    for wanted in (lambda test: test in ids, _looks_whole):
        for end in ends:
            if wanted(rest[:end]):
                return rest[:end]
    return rest


def _looks_whole(test: str) -> bool:
    """Return whether an id is not cut off: its parameters are closed, and there is no blank outside of them."""
    name = test.partition("::")[2]
    return name.endswith("]") if "[" in name else " " not in name


def _verbose(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield ids and statuses of verbose lines."""
    for line in lines:
        if "::" not in line or _SUMMARY_LINE.fullmatch(line):
            continue
        for match in _STATUS.finditer(line):
            test, separator, _ = line[: match.start()].partition(" <- ")
            test = test if separator else test[:-1]
            blank = line[match.start() - 1 : match.start()] == " "
            if blank and _looks_whole(test) and _VERBOSE_END.fullmatch(line, match.end()):
                yield test, match[0]
                break
