"""Lots of mixed runs: what is drawn, how well it can be guessed, and what a run's results prove."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.rollout.mixed import DRAWINGS, MADE, MixedRuns, function_of
from lightning_smith.rollout.task import RolloutTask

TASK = RolloutTask(
    "x__1",
    "image",
    "",
    ("t/test_a.py::test_one[p::q]", "t/test_a.py::test_one[r]", "t/test_a.py::TestB::test_two"),
    ("t/test_a.py::test_three", "t/test_a.py::test_four"),
)


@pytest.mark.parametrize(
    ("test", "function"),
    [
        ("tests/test_a.py::test_b", "test_b"),
        ("tests/test_a.py::TestC::test_b[x::y - z[0]]", "test_b"),
        ("test_b (pkg.test_a.TestC)", "test_b"),
        ("test_b (pkg.test_a.TestC.test_b)", "test_b"),
        ("tests/test_a.py::test_ü", "test_ü"),
        ("[]", ""),
    ],
)
def test_function_of(test: str, function: str) -> None:
    assert function_of(test) == function


def lots_of(deciding: int, others: int = 0) -> MixedRuns:
    return MixedRuns(
        {}, frozenset(), tuple(f"d{n}" for n in range(deciding)), tuple(f"o{n}" for n in range(others))
    )


FUNCTIONS = {"test_one", "test_two", "test_three", "test_four", "helper"}


def test_lots_are_of_functions_that_decide() -> None:
    def lots(witnesses: set[str], functions: set[str] = FUNCTIONS) -> tuple[tuple[str, ...], tuple[str, ...]]:
        runs = MixedRuns.of(TASK, witnesses, functions)
        assert runs.witnesses == witnesses and set(runs.units) == set(TASK.tests)
        return runs.deciding, runs.others

    tests = TASK.tests
    assert lots(set(tests)) == (("test_one", "test_two"), ("test_four", "test_three"))
    assert lots({tests[1], tests[3]}) == (("test_one",), ("test_three",))
    assert lots({tests[3], tests[4]}) == (("test_four", "test_three"), ())
    assert lots(set(tests), {"test_two", "run"}) == ((MADE, "test_two"), ())
    assert lots({tests[2], tests[3]}, {"test_two"}) == (("test_two",), (MADE,))


@pytest.mark.parametrize(("units", "count"), [(1, 4), (2, 3), (3, 3), (4, 2), (5, 2), (200, 2)])
def test_few_units_take_more_runs(units: int, count: int) -> None:
    assert lots_of(units).count == count and (2**count - 2) ** units >= DRAWINGS


def draw_all(lots: MixedRuns, chance: random.Random) -> list[frozenset[str]]:
    earlier: list[frozenset[str]] = []
    for _ in range(lots.count):
        earlier.append(lots.draw(earlier, chance))
    return earlier


@given(st.integers(1, 9), st.integers(0, 3), st.integers())
def test_each_test_is_altered_and_repeated(deciding: int, others: int, seed: int) -> None:
    """Nobody comes through who treats all runs alike, or the first one differently."""
    lots = lots_of(deciding, others)
    drawn = draw_all(lots, random.Random(seed))
    assert all(each <= {*lots.deciding, *lots.others} for each in drawn)
    for unit in (*lots.deciding, *lots.others):
        assert {unit in altered for altered in drawn} == {True, False}


@pytest.mark.parametrize(("units", "drawings"), [(1, 14), (2, 36), (4, 16)])
def test_no_guess_is_better_than_another(units: int, drawings: int) -> None:
    """All drawings are equally likely, so that even who knows which run it is guesses 1 in 14, or less."""
    lots, chance = lots_of(units), random.Random(5)
    found = Counter(tuple(draw_all(lots, chance)) for _ in range(1000 * drawings))
    assert len(found) == drawings >= DRAWINGS
    assert all(850 < count < 1150 for count in found.values())  # 1000 +- 32 expected


def test_what_speaks_against_a_patch() -> None:
    one_p, one_r, two, three, four = TASK.tests
    runs = MixedRuns.of(TASK, {one_p, two, three}, FUNCTIONS)
    passed = dict.fromkeys(TASK.tests, "PASSED")
    assert runs.against(passed, ()) == (set(), set())
    assert runs.against(passed, ("test_one", "test_four")) == ({one_p}, set())
    failed = passed | {one_p: "FAILED", four: "FAILED"}
    assert runs.against(failed, ("test_one", "test_four")) == (set(), set())
    assert runs.against(failed, ("test_four",)) == (set(), {one_p})
    assert runs.against({one_r: "XFAIL"}, ("test_three",)) == (set(), {one_p, two, four})
    assert runs.against({}, ()) == (set(), set(TASK.tests))
    made = MixedRuns.of(TASK, {one_p, two, three}, ())
    assert made.against(passed, (MADE,)) == ({one_p, two, three}, set())
    assert made.against({}, ()) == (set(), set(TASK.tests))
