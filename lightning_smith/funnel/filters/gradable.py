"""Drops rows that the official harness cannot grade. Off in the published configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lightning_smith.core.errors import UserError
from lightning_smith.grading.log_lines import PLAIN_ID, PYTEST_FORMS, STATUS_WORDS, odd_reason, shadowing
from lightning_smith.grading.profiles import PYTHON, Profile, ProfileKey, ProfileSource

NAME = "gradable"
COLUMNS = ("repo", "image_name", "FAIL_TO_PASS", "PASS_TO_PASS")
NO_PROFILE = "no_profile"
"""SWE-smith does not say how the repository's tests are run."""
NOT_PYTHON = "not_python"
"""The workspaces and graders of the published recipe are Python's."""
ODD_TEST_ID = "odd_test_id"
"""The profile's own parser does not read one of its ids back from a log."""
REASONS = (NO_PROFILE, NOT_PYTHON, ODD_TEST_ID)

OddReason = Callable[[Profile, str], str | None]
"""Why an id cannot be graded under a profile, or None."""


@dataclass(frozen=True)
class Judgement:
    """Whether a row can be graded: the reason to drop it (None: keep it), and the test that is at fault, if any."""

    reason: str | None = None
    test: str | None = None
    detail: str | None = None


class OddIds:
    """Asks the parsers of a ProfileSource, each once for an id and a repository."""

    def __init__(self, source: ProfileSource) -> None:
        self._source = source
        self._known: dict[tuple[str, str], str | None] = {}

    def __call__(self, profile: Profile, test: str) -> str | None:
        place = profile.log_parser or "", test
        if place not in self._known:
            self._known[place] = odd_reason(test, self._source.parser(profile, (test,)), profile.line_forms)
        return self._known[place]


def reasons(
    batch: pa.RecordBatch, profiles: Mapping[ProfileKey, Profile], odd: OddReason
) -> list[str | None]:
    """One of REASONS for each row to drop, None for each to keep."""
    return [judgement.reason for judgement in judge(batch, profiles, odd)]


def judge(batch: pa.RecordBatch, profiles: Mapping[ProfileKey, Profile], odd: OddReason) -> list[Judgement]:
    """Return a judgement for each row. Raise UserError for a repository that the table of profiles lacks."""
    lists = [batch.column(name) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
    special = special_ids(lists, batch.num_rows)
    judged: list[Judgement] = []
    for row, key in enumerate(zip(*(batch.column(name).to_pylist() for name in COLUMNS[:2]), strict=True)):
        if key not in profiles:
            raise UserError(f"the table of profiles lacks {key[0]} with {key[1]}: delete it and run again")
        profile = profiles[key]
        if profile.language is None:
            judged.append(Judgement(NO_PROFILE))
        elif profile.language != PYTHON:
            judged.append(Judgement(NOT_PYTHON))
        else:
            pytest = bool(profile.line_forms) and PYTEST_FORMS.issuperset(profile.line_forms)
            tests = special[row] if pytest else _all_tests(lists, row)
            judged.append(_judge_tests(profile, tests, odd, lambda row=row: _all_tests(lists, row)))
    return judged


def _all_tests(lists: Iterable[pa.ListArray], row: int) -> list[str]:
    return [test for column in lists for test in column[row].as_py()]


def _judge_tests(
    profile: Profile, tests: Iterable[str], odd: OddReason, all_tests: Callable[[], list[str]]
) -> Judgement:
    for test in tests:
        if (detail := odd(profile, test)) is not None:
            return Judgement(ODD_TEST_ID, test, detail)
        if " - " in test and (other := shadowing(test, set(all_tests()))) is not None:
            return Judgement(ODD_TEST_ID, test, f"a failure of it reads as one of {other}")
    return Judgement()


def special_ids(lists: Iterable[pa.ListArray], rows: int) -> list[list[str]]:
    """For each row its ids that are not plain: the few that a parser has to be asked about.

    Arrow's expressions look at some ten million ids a second, a parser at some hundred thousand.
    """
    found: list[list[str]] = [[] for _ in range(rows)]
    for column in lists:
        tests = column.flatten()
        special = pc.call_function("invert", [_matches(tests, rf"\A(?:{PLAIN_ID})\z")])
        chosen = pc.call_function("or", [special, _matches(tests, STATUS_WORDS)])
        rows_of = pc.call_function("list_parent_indices", [column])
        for row, test in zip(
            rows_of.filter(chosen).to_pylist(), tests.filter(chosen).to_pylist(), strict=True
        ):
            found[row].append(test)
    return found


def _matches(texts: pa.Array, pattern: str) -> pa.BooleanArray:
    return pc.call_function("match_substring_regex", [texts], pc.MatchSubstringOptions(pattern))
