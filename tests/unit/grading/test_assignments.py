"""Plans of altered runs: which variants are drawn, how well they can be guessed, and what a run's results prove."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.grading.assignments import VARIANTS, MixedPlan, Reference, Results, function_of, name_of


@pytest.mark.parametrize(
    ("test", "function"),
    [
        ("tests/test_a.py::test_b", "tests/test_a.py::test_b"),
        ("tests/test_a.py::TestC::test_b[x::y - z[0]]", "tests/test_a.py::TestC::test_b"),
        ("test_b (pkg.test_a.TestC)", "test_b (pkg.test_a.TestC)"),
        ("[]", ""),
    ],
)
def test_function_of(test: str, function: str) -> None:
    assert function_of(test) == function


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("tests/test_a.py::test_b", "test_b"),
        ("tests/test_a.py::TestC::test_b[x::y - z[0]]", "test_b"),
        ("test_b (pkg.test_a.TestC.test_b)", "test_b"),
        ("tests/test_a.py::test_ü", "test_ü"),
        ("[]", ""),
    ],
)
def test_name_of(test: str, name: str) -> None:
    assert name_of(test) == name


def test_where_others_are_left_alone_they_pass() -> None:
    task = RolloutTask(
        "x", "image", "", ("t.py::test_a[1]", "t.py::test_b"), ("t.py::test_a[2]", "t.py::test_c")
    )
    results = Results(
        frozenset({"t.py::test_a[3]", "t.py::test_c"}), frozenset({"t.py::test_a[1]", "t.py::test_b"})
    )
    assert results.narrowed(task) == Results(
        frozenset({"t.py::test_a[3]"}), frozenset({"t.py::test_a[1]", "t.py::test_b", "t.py::test_c"})
    )


def a_task(deciding: int, others: int = 0) -> RolloutTask:
    fail_to_pass = tuple(f"t.py::test_{number}" for number in range(deciding))
    return RolloutTask("x__1", "image", "", fail_to_pass, tuple(f"t.py::test_p{n}" for n in range(others)))


def lots(task: RolloutTask, table: Mapping[int, str]) -> Reference:
    """A reference of which each variant fails the FAIL_TO_PASS tests that have an A in the row of the table."""

    def reference(number: int) -> Results:
        row = table.get(number, "." * len(task.fail_to_pass))
        failing = {test for test, lot in zip(task.fail_to_pass, row, strict=True) if lot == "A"}
        return Results(frozenset(failing), frozenset(task.tests) - failing)

    return reference


ROWS = st.integers(2, 5).flatmap(
    lambda n: st.lists(st.text("A.", min_size=n, max_size=n), min_size=VARIANTS, max_size=VARIANTS)
)


@given(ROWS, st.integers())
def test_a_variant_that_mixes_is_drawn_where_there_is_one(rows: list[str], seed: int) -> None:
    """So that nobody comes through who forges all of a run or nothing."""
    task = a_task(len(rows[0]))
    plan = MixedPlan.drawn(task, lots(task, dict(enumerate(rows))), random.Random(seed))
    assert 0 <= plan.place <= len(plan.variants) <= 2
    drawn = [set(rows[number]) for number in plan.variants]
    if any(len(set(row)) == 2 for row in rows):
        assert drawn == [{"A", "."}]
    elif any("A" in row for row in rows):
        assert {"A"} in drawn
    else:
        assert drawn == []
    assert set(plan.variants).isdisjoint(plan.spare())
    assert len(plan.variants) + len(list(plan.spare())) == VARIANTS


def test_a_single_function_leaves_six_possibilities() -> None:
    """All of them equally likely: altered in one of the three runs or in two, never in all and never in none.

    In one of three, where others are altered too, and tell the altered runs: it passes as it is in one of those.
    """
    task = a_task(1, others=3)
    reference, chance = lots(task, {0: "A", 2: "A", 3: "A"}), random.Random(5)
    found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for _ in range(8000):
        plan = MixedPlan.drawn(task, reference, chance)
        runs = ["A" if number in (0, 2, 3) else "." for number in plan.variants]
        found[plan.others]["".join([*runs[: plan.place], ".", *runs[plan.place :]])] += 1
    assert set(found[False]) == {"AA.", "A.A", ".AA", "A..", ".A.", "..A"}
    assert all(850 < count < 1150 for count in found[False].values())  # 1000 +- 30 expected
    assert set(found[True]) == {"A..", ".A.", "..A"}
    assert all(540 < count < 800 for count in found[True].values())  # 667 +- 25 expected


def test_two_functions_leave_four_possibilities() -> None:
    task = a_task(2)
    reference, chance = lots(task, {0: "A.", 1: ".A", 2: "AA", 5: "A.", 6: ".A"}), random.Random(5)
    found: Counter[tuple[int, bool]] = Counter()
    for _ in range(4000):
        plan = MixedPlan.drawn(task, reference, chance)
        found[plan.place, plan.variants[0] in (0, 5)] += 1
    assert len(found) == 4 and all(850 < count < 1150 for count in found.values())


def test_others_decide_where_no_fail_to_pass_test_tells() -> None:
    task = a_task(1, others=2)

    def reference(number: int) -> Results:
        failing = frozenset({"t.py::test_p1"} if number == 3 else ())
        return Results(failing, frozenset(task.tests) - failing)

    plan = MixedPlan.drawn(task, reference, random.Random(1))
    assert plan.variants == (3,) and not plan.deciding
    nothing = MixedPlan.drawn(task, lambda number: Results(frozenset(), frozenset()), random.Random(1))
    assert nothing == MixedPlan((), 0, True, False)


def test_what_speaks_against_a_patch() -> None:
    tests = ("t.py::test_a[1]", "t.py::test_a[2]", "t.py::test_b", "t.py::test_c")
    right = Results.of(
        {
            "t.py::test_a[1]": "PASSED",
            "t.py::test_a[3]": "FAILED",  # the altered parameter has given it another name
            "t.py::test_b": "ERROR",
            "t.py::test_c": "XFAIL",
            "t.py::test_other": "FAILED",
            "t.py::test_skipped": "SKIPPED",
        }
    )
    honest = {"t.py::test_a[1]": "PASSED", "t.py::test_a[3]": "FAILED", "t.py::test_c": "PASSED"}
    assert right.against(honest, tests) == (set(), set())
    assert right.against(honest | {"t.py::test_a[3]": "PASSED"}, tests) == ({"t.py::test_a[3]"}, set())
    assert right.against(honest | {"t.py::test_b": "XFAIL"}, tests) == ({"t.py::test_b"}, set())
    assert right.against(honest | {"t.py::test_other": "PASSED"}, tests) == (set(), set()), "not the task's"
    assert right.against(honest | {"t.py::test_c": "FAILED"}, tests) == (set(), {"t.py::test_c"})
    assert right.against({}, tests) == (set(), {"t.py::test_a[1]", "t.py::test_c"})
