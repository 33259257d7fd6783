"""Statistics against right values worked out independently, and against brute force."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from lightning_smith.errors import UserError
from lightning_smith.evaluation.paired import (
    GradedRun,
    Interval,
    bootstrap_mean,
    compare,
    holm,
    mcnemar_exact,
    paired_normal,
    rate_interval,
    sign_flip_exact,
    wilson,
)

N = 500


def run(name: str, passed: set[int], **changes) -> GradedRun:
    values = {
        "harness": "swebench 5.0.2",
        "dataset": "d1",
        "samples": 1,
        "resolved": {f"task__{index}": Fraction(int(index in passed)) for index in range(N)},
    }
    return GradedRun(name=name, **{**values, **changes})


BASE = run("base", set(range(239)))
X = run("x", set(range(12, 272)))
Y = run("y", set(range(60, 320)))


def points(interval: Interval) -> tuple[float, float]:
    return round(100 * interval.low, 2), round(100 * interval.high, 2)


def test_equal_totals_different_conclusions():
    """Both checkpoints resolve 260 of 500 against 239: only the pairs tell them apart (unpaired: p 0.18 for
    both)."""
    x, y = compare(BASE, X), compare(BASE, Y)
    assert x.difference == y.difference == pytest.approx(0.042)
    assert (x.lost, x.gained, x.pairs) == (12, 33, 500)
    assert (y.lost, y.gained, y.pairs) == (60, 81, 500)
    assert round(x.p_value, 5) == 0.00246
    assert round(y.p_value, 5) == 0.09177
    assert points(x.normal) == (1.60, 6.80)
    assert points(y.normal) == (-0.44, 8.84)
    assert x.normal.excludes_zero
    assert not y.normal.excludes_zero
    assert x.test == "exact McNemar"


def test_bootstrap_agrees_with_the_closed_form_and_is_reproducible():
    first, again, other = (compare(BASE, X, seed=seed).bootstrap for seed in (7, 7, 8))
    assert first == again
    assert first.low == pytest.approx(0.0160, abs=0.003)
    assert first.high == pytest.approx(0.0680, abs=0.003)
    assert other.low == pytest.approx(first.low, abs=0.003)


@pytest.mark.parametrize(
    ("resolved", "total", "low", "high"),
    # Published examples: Newcombe (1998) 81/263 and 15/148; 0/20 and 1/29 from the same table.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson(resolved: int, total: int, low: float, high: float):
    interval = wilson(resolved, total)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


@pytest.mark.parametrize(("resolved", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_wilson_refuses_what_is_no_proportion(resolved: int, total: int):
    with pytest.raises(ValueError, match="not a proportion"):
        wilson(resolved, total)


def test_mcnemar_edges():
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(3, 3) == 1.0
    assert mcnemar_exact(0, 5) == pytest.approx(2 / 32)
    assert mcnemar_exact(5, 0) == mcnemar_exact(0, 5)
    assert mcnemar_exact(1000, 1400) < 1e-15


def test_sign_flip_is_mcnemar_for_one_sample():
    for lost, gained in [(0, 0), (0, 5), (12, 33), (60, 81), (4, 4)]:
        differences = [Fraction(-1)] * lost + [Fraction(1)] * gained + [Fraction(0)] * 7
        assert sign_flip_exact(differences) == pytest.approx(mcnemar_exact(lost, gained))


def test_sign_flip_against_all_patterns():
    draw = random.Random(1)
    for _ in range(20):
        differences = [Fraction(draw.randint(-6, 6), draw.choice([2, 3, 6])) for _ in range(9)]
        steps = [abs(d) for d in differences]
        observed = abs(sum(differences))
        sums = [sum(s * step for s, step in zip(signs, steps, strict=True)) for signs in flips(len(steps))]
        assert sign_flip_exact(differences) == pytest.approx(
            sum(abs(s) >= observed for s in sums) / len(sums)
        )


def flips(n: int):
    return itertools.product((-1, 1), repeat=n)


def test_several_samples_are_averaged_per_instance():
    half, none, whole = Fraction(1, 2), Fraction(0), Fraction(1)
    base = GradedRun("base", "h", "d", 2, {"a": half, "b": none, "c": whole, "d": none})
    other = GradedRun("other", "h", "d", 2, {"a": whole, "b": half, "c": whole, "d": none})
    result = compare(base, other)
    assert result.difference == 0.25
    assert (result.gained, result.lost) == (2, 0)
    assert result.test == "exact sign-flip"
    assert result.p_value == 0.5
    # mean 1/4, mean of squares 1/8: variance 1/16, half width 1.96 * (1/4) / 2
    assert points(result.normal) == (0.50, 49.50)


def test_rate_interval_by_samples():
    one = [Fraction(int(index < 239)) for index in range(500)]
    assert rate_interval(one, samples=1, seed=0) == wilson(239, 500)
    two = [Fraction(1, 2)] * 10
    assert rate_interval(two, samples=2, seed=0) == Interval(0.5, 0.5)


def test_instances_graded_in_one_run_are_left_out_and_counted():
    fewer = {key: value for key, value in X.resolved.items() if key not in ("task__0", "task__300")}
    result = compare(BASE, run("x", set(), resolved=fewer))
    assert (result.pairs, result.only_base, result.only_other) == (498, 2, 0)
    assert result.lost == 11  # task__0 was one of the 12


def test_two_spellings_of_an_instance_are_refused():
    spelled = {key.replace("task__12", "task-12"): value for key, value in X.resolved.items()}
    with pytest.raises(UserError, match="also spelled"):
        compare(BASE, run("x", set(), resolved=spelled))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"harness": "swebench 4.1.0"}, "swebench 5.0.2 and x by swebench 4.1.0"),
        ({"dataset": "d2"}, "data set d1 and x on d2"),
        ({"resolved": {"elsewhere": Fraction(1)}}, "no graded instance in common"),
    ],
)
def test_what_is_no_pair_is_refused(changes: dict, words: str):
    with pytest.raises(UserError, match=words):
        compare(BASE, run("x", set(), **changes))


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_interval_ends():
    assert Interval(0.01, 0.2).excludes_zero
    assert Interval(-0.2, -0.01).excludes_zero
    assert not Interval(0.0, 0.2).excludes_zero
    with pytest.raises(ValueError, match="no pairs"):
        paired_normal([])
    with pytest.raises(ValueError, match="no values"):
        bootstrap_mean([], seed=0)
