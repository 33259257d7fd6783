"""Whether ids can be read back from a log, by SWE-smith's own parsers and by the grader of rollouts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smith_environment import ROOT, SmithProcess, needs_smith

from lightning_smith.grading.log_lines import (
    LINE_FORMS,
    OWN_FORMS,
    PLAIN_ID,
    STATUS_WORDS,
    odd_reason,
    read_own,
    readable_forms,
    shadowing,
)
from lightning_smith.grading.statuses import PASSING, read_statuses

DATA = Path(__file__).parents[2] / "data" / "swe_smith"

MOTO = "swesmith/getmoto__moto.694ce1f4"
"""Read by the parser that nearly all Python profiles have."""
AUTOGRAD, MYPY = "swesmith/HIPS__autograd.ac044f0d", "swesmith/python__mypy.e93f06ce"
PARAMIKO, SLUGIFY = "swesmith/paramiko__paramiko.23f92003", "swesmith/un33k__python-slugify.872b3750"
TORNADO = "swesmith/tornadoweb__tornado.d5ac65c1"

GOOD = [
    "test_t.py::test_p[tab\\there]",
    "test_t.py::test_p[nul\\x00]",
    "test_t.py::test_p[\\xe9]",
    "test_t.py::test_p[a|b]",
    "test_t.py::test_strict",
    "test_t.py::test_s",
]
"""Ids of a real run of pytest 9 that every reader of pytest's lines reads."""

BLANKS = [
    "test_t.py::test_p[a - b]",
    "test_t.py::test_p[1 + 1]",
    "test_t.py::test_p[end ]]",
    "test_t.py::test_p[x PASSED]",
    "test_t.py::test_p[[1] FAILED - no]",
    "test_t.py::test_p[p::q r]",
]
"""Of the same run: with blanks in the parameters."""

CUT = ["test_t.py::test_p[x", "test_t.py::test_p[[1]x", "test_t.py::test_p["]
"""What SWE-smith's parser makes of ids whose parameters hold a blank and a status word."""


@pytest.fixture(scope="module")
def smith() -> Iterator[SmithProcess]:
    process = SmithProcess()
    yield process
    process.close()


def own(test: str) -> str | None:
    return odd_reason(test, lambda log: read_own(log, (test,)), OWN_FORMS)


def test_the_grader_of_rollouts_reads_blanks_brackets_and_status_words() -> None:
    assert {test: own(test) for test in [*GOOD, *BLANKS] if own(test) is not None} == {}
    assert own("t.py::test_p[a] - b]") is None
    assert own(f"t.py::test_p[{'x' * 100_000}]") is None


@pytest.mark.parametrize(
    "test",
    [
        "t.py::test_p[two\nlines]",
        "t.py::test_p[a\rb]",
        "t.py::test_p[\x1b[31mred\x1b[0m]",
        "t.py::test_p[>>>>> Start Test Output]",
        "",
        *CUT,
    ],
)
def test_what_no_line_of_a_log_can_name_is_odd(test: str) -> None:
    assert own(test) is not None


def test_a_parser_that_reads_no_form_makes_every_id_odd() -> None:
    assert readable_forms(lambda log: {}) == ()
    assert (
        odd_reason("t.py::test_a", lambda log: {}, ()) == "the profile's parser reads no known form of lines"
    )


def test_the_reason_says_what_was_read_from_which_line() -> None:
    def first_word(log: str) -> dict[str, str]:
        return {match[1]: match[2] for match in re.finditer(r"^(\S+)\s+(PASSED|FAILED)", log, re.M)}

    assert readable_forms(first_word) == ("verbose",)
    reason = odd_reason("t.py::test_p[x PASSED]", first_word, ("verbose",))
    assert reason == (
        "the profile's parser reads {'t.py::test_p[x': 'PASSED'} from 't.py::test_p[x PASSED] PASSED [ 50%]'"
    )


PARAMETERS = [
    "plain", "", "a b", "a - b", " lead", "trail ", "two  blanks", "\t", "\n", "\r", "\x00", "\x1b[31mred\x1b[0m",
    "é", "🙂", "\u00a0", "\u2028", "\u200b", "[", "]", "[]", "a]b", "[a", "end ]", "]] ", "x] - y", "::", "a::b c",
    "PASSED", "FAILED", "x PASSED", "x FAILED - y", "PASSED x", "SKIPPED [1] t.py:1: y", "[ 50%]",
    "ERROR t.py::test_passes[plain]", "100%]", "a <- b", "#1", "%s", "{}", "\\", "'", '"', "-", "- ", "l" * 300,
    "=== 1 failed in 0.1s ===", "long " * 60,
]  # fmt: skip
REPORTER = """
import json
outcomes = {}
def pytest_runtest_logreport(report):
    if report.when == "call":
        outcomes[report.nodeid] = report.outcome.upper()
def pytest_unconfigure():
    with open("outcomes.json", "w") as file:
        json.dump(outcomes, file)
"""


def run_pytest(folder: Path, raw_ids: bool) -> tuple[dict[str, str], str, bytes]:
    """Outcomes that pytest reports, its verbose log as SWE-smith makes it, and the grader's log with a summary."""
    code = f"import pytest\n\nVALUES = {PARAMETERS!r}\n"
    for name, check in (("passes", "True"), ("fails", "False")):
        code += f"\n@pytest.mark.parametrize('v', VALUES, ids=str)\ndef test_{name}(v):\n    assert {check}\n"
    (folder / "test_t.py").write_text(code)
    (folder / "reporter.py").write_text(REPORTER)
    option = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support"
    common = [
        "-p",
        "reporter",
        "-p",
        "no:cacheprovider",
        "--color=no",
        "--tb=no",
        "-o",
        f"{option}={raw_ids}",
    ]
    logs = []
    for flags in (["--verbose", "--disable-warnings"], ["-rA"]):
        command = [str(ROOT / "envs/testbed/.venv/bin/python"), "-m", "pytest", *common, *flags, "test_t.py"]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "LC_ALL": "C.UTF-8"}
        logs.append(subprocess.run(command, cwd=folder, env=environment, capture_output=True).stdout)
    return json.loads((folder / "outcomes.json").read_text()), logs[0].decode(), logs[1]


# In the parameters, whatever a parser could trip over.
odd_texts = st.text(st.sampled_from(" -[]:.PASSEDFAILIED\u00e9\u2028\n\x1b"), max_size=12)
mixed_ids = st.lists(
    st.tuples(odd_texts, st.sampled_from(["PASSED", "FAILED"])),
    min_size=1,
    max_size=8,
    unique_by=lambda x: x[0],
)


@settings(max_examples=300, deadline=None)
@given(drawn=mixed_ids)
def test_ids_that_are_not_odd_are_told_apart_in_a_whole_log(drawn: list[tuple[str, str]]) -> None:
    tests = {f"t.py::test_p[{text}]": status for text, status in drawn}
    fine = {
        test: status
        for test, status in tests.items()
        if own(test) is None and shadowing(test, tests.keys()) is None
    }
    lines = [LINE_FORMS["summary"](test, status) for test, status in fine.items()]
    heading, counts = "===== short test summary info =====", "===== 1 failed, 7 passed in 0.05s ====="
    log = "\n".join(["t.py .F", heading, *lines, counts, ""])
    assert read_statuses(log.encode(), fine) == fine


def test_an_id_that_begins_with_another_of_its_task_is_seen() -> None:
    tests = ["t.py::test_p[a]", "t.py::test_p[a] - b]", "t.py::test_p[c - d]"]
    assert [shadowing(test, tests) for test in tests] == [None, "t.py::test_p[a]", None]


@pytest.mark.e2e
@needs_smith
class TestSmithParsers:
    """With the parsers of swesmith 0.0.9."""

    def test_ids_that_the_common_parser_cannot_read_back(self, smith: SmithProcess) -> None:
        assert smith.odd(MOTO, GOOD) == [None] * len(GOOD)
        assert all(smith.odd(MOTO, [*BLANKS, *CUT]))

    @pytest.mark.parametrize(
        "test",
        [
            " t.py::test_a",
            "t.py::test_a ",
            "t.py::test_p[\u00a0]",
            "t.py::test_p[a\u2028b]",
            "t.py::test_p[a\tb]",
            "t.py::test_p[a\nb]",
            "t.py::test_p[\x1b[31mred]",
            "",
        ],
    )
    def test_blanks_of_any_kind_and_escapes_are_odd(self, smith: SmithProcess, test: str) -> None:
        (reason,) = smith.odd(MOTO, [test])
        assert reason is not None

    def test_letters_of_any_script_and_long_ids_are_not(self, smith: SmithProcess) -> None:
        tests = ["t.py::test_p[é]", "t.py::test_ünï", f"t.py::test_p[{'x' * 50_000}]", "t.py::test_PASSED"]
        assert smith.odd(MOTO, tests) == [None] * len(tests)

    def test_parsers_of_their_own(self, smith: SmithProcess) -> None:
        assert smith.odd(SLUGIFY, ["test_a (__main__.TestSlugify)", "test.py::test_a"])[0] is None
        assert smith.odd(SLUGIFY, ["test.py::test_a"])[0] is not None
        assert smith.odd(TORNADO, ["test_a (tornado.test.web_test.Case)"]) == [None]
        # The heading of a failure names the method, the line of a success a docstring.
        assert smith.odd(TORNADO, ["Closing a stream twice is fine."])[0] is not None
        # It looks for PASSED anywhere in a line before it looks for FAILED.
        assert smith.odd(MYPY, ["mypy/test/a.py::Suite::a.test::testB", "t.py::test_PASSED"])[0] is None
        assert smith.odd(MYPY, ["t.py::test_PASSED"])[0] is not None

    @settings(max_examples=40, deadline=None)
    @given(tests=st.lists(st.from_regex(PLAIN_ID, fullmatch=True), min_size=20, max_size=60))
    def test_plain_ids_are_read_back_by_every_parser_of_pytests_lines(
        self, smith: SmithProcess, tests: list[str]
    ) -> None:
        """So the filter need not ask a parser about them."""
        plain = [test for test in tests if not re.search(STATUS_WORDS, test)]
        for repo in (MOTO, AUTOGRAD, MYPY, PARAMIKO):
            assert smith.odd(repo, plain) == [None] * len(plain)

    @pytest.mark.parametrize("raw_ids", [False, True])
    def test_what_real_pytest_prints_is_read_as_foretold(
        self, smith: SmithProcess, tmp_path: Path, raw_ids: bool
    ) -> None:
        """Ids that are not odd are read with the status that pytest itself reports; others are there to be found."""
        outcomes, verbose, summary = run_pytest(tmp_path, raw_ids)
        tests = [*outcomes]
        assert len(tests) == 2 * len(PARAMETERS)
        reasons = dict(zip(tests, smith.odd(MOTO, tests), strict=True))
        fine = [test for test, reason in reasons.items() if reason is None]
        assert len(fine) >= 20 and len(tests) - len(fine) >= 20
        theirs, ours = smith.read(MOTO, verbose), read_statuses(summary, tests)
        assert {test: theirs[test] for test in fine} == {test: outcomes[test] for test in fine}
        assert {test: ours[test] for test in fine} == {test: outcomes[test] for test in fine}
        assert any(theirs.get(test) != outcomes[test] for test in tests)
        readable = [test for test in tests if own(test) is None and shadowing(test, tests) is None]
        assert {test: ours[test] for test in readable} == {test: outcomes[test] for test in readable}

    def test_a_real_row_and_its_real_log(self, smith: SmithProcess) -> None:
        """Every id of the row is read back from the log that graded it, by SWE-smith's parser and by ours."""
        row: dict[str, Any] = json.loads((DATA / "pandas_53652.json").read_text())
        log = (DATA / "pandas_53652.log").read_text()
        tests = row["FAIL_TO_PASS"] + row["PASS_TO_PASS"]
        assert smith.odd(row["repo"], tests) == [None] * len(tests)
        theirs = smith.read(row["repo"], log)
        assert {theirs[test] for test in tests} <= PASSING
        ours = read_statuses(log.encode(), tests)
        assert {test: ours[test] for test in tests} == {test: theirs[test] for test in tests}
