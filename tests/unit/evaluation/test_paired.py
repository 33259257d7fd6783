"""Statistics against right values worked out independently, and against brute force."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.paired import (
    GradedRun,
    Interval,
    bootstrap_mean,
    compare,
    holm,
    mcnemar_exact,
    paired_clustered,
    paired_normal,
    rate_interval,
    repository_of,
    sign_flip_exact,
    t_critical_value,
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
    two = [Fraction(1, 2)] * 9 + [Fraction(1)]
    assert rate_interval(two, samples=2, seed=0) == bootstrap_mean(two, seed=0)


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


@pytest.mark.parametrize(
    ("degrees", "value"),
    [
        (1, 12.706205),
        (2, 4.302653),
        (3, 3.182446),
        (5, 2.570582),
        (6, 2.446912),
        (11, 2.200985),
        (200, 1.971896),
    ],
)
def test_critical_values_of_t(degrees: int, value: float):
    """Of the printed tables."""
    assert t_critical_value(degrees) == pytest.approx(value, abs=2e-6)
    assert t_critical_value(degrees, 0.99) > value


def test_the_density_of_t_integrates_to_its_level():
    """Independent of the series: Simpson's rule over the density itself."""
    for degrees in (4, 7):
        scale = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
        end, parts = t_critical_value(degrees, 0.9), 2000
        heights = [
            scale * (1 + (end * i / parts) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(parts + 1)
        ]
        area = (
            end / parts / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]))
        )
        assert 2 * area == pytest.approx(0.9, abs=1e-9)


@pytest.mark.parametrize(
    ("instance_id", "repository"),
    [
        ("django__django-11099", "django__django"),
        ("scikit-learn__scikit-learn-10297", "scikit-learn__scikit-learn"),
        ("pypi__cachetools.30ac523a.func_pm_cmp_change__0481704b", "pypi__cachetools"),
        ("oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc", "oauthlib__oauthlib"),
        ("pallets__web.py.1fd52536.pr_1", "pallets__web.py"),
        ("i7", None),
    ],
)
def test_the_repository_of_an_id(instance_id: str, repository: str | None):
    assert repository_of(instance_id) == repository


def clustered_differences(seed: int) -> dict[str, Fraction]:
    """Differences of instances in seven repositories of unlike size and level."""
    draw = random.Random(seed)
    sizes = (29, 36, 30, 28, 28, 32, 17)
    return {
        f"o__r{number}-{index}": Fraction(draw.choice((-1, 0, 0, 1)) + (draw.random() < number / 9), 2)
        for number, size in enumerate(sizes)
        for index in range(size)
    }


@pytest.mark.parametrize("seed", range(5))
def test_the_clustered_interval_is_the_cluster_robust_one_of_a_regression_on_a_constant(seed: int):
    """By another way: residuals summed by cluster and freed of the cluster's leverage (CR3 of Bell and McCaffrey)."""
    differences = clustered_differences(seed)
    n, mean = len(differences), float(sum(differences.values()) / len(differences))
    residuals: dict[str, list[float]] = {}
    for key, value in differences.items():
        residuals.setdefault(key.rpartition("-")[0], []).append(float(value) - mean)
    freed = [sum(part) / (1 - len(part) / n) for part in residuals.values()]
    error = math.sqrt(6 / 7 * sum(value * value for value in freed)) / n
    count, interval = paired_clustered(differences)
    assert count == 7 and interval is not None
    assert interval.low == pytest.approx(mean - 2.446911851 * error, abs=1e-9)
    assert interval.high == pytest.approx(mean + 2.446911851 * error, abs=1e-9)


def test_the_clustered_interval_covers_what_it_says():
    """Of 400 draws of seven repositories, each with an effect of its own, about 95 % cover the common one."""
    draw = random.Random(1)
    covered = 0
    for _ in range(400):
        effects = [draw.gauss(0, 0.2) for _ in range(7)]
        drawn = {
            f"o__r{g}-{i}": Fraction(round(1000 * draw.gauss(effects[g], 0.5)), 1000)
            for g in range(7)
            for i in range(20)
        }
        _, interval = paired_clustered(drawn)
        assert interval
        covered += interval.low <= 0 <= interval.high
    assert 0.92 < covered / 400 < 0.98


def test_there_is_no_clustered_interval_of_one_repository_or_of_unknown_ones():
    assert paired_clustered({"i1": Fraction(1), "o__r-1": Fraction(0)}) == (0, None)
    assert paired_clustered({"o__r-1": Fraction(1), "o__r-2": Fraction(0)}) == (1, None)
    assert paired_clustered({"o__r-1": Fraction(1), "o__s-2": Fraction(1)}) == (2, None)


@pytest.mark.parametrize("value", [Fraction(0), Fraction(1), Fraction(1, 2)])
def test_an_interval_has_a_width_where_all_are_alike(value: Fraction):
    """No instance that resolves in 200 does not prove that none ever will."""
    assert rate_interval([value] * 200, samples=2, seed=0) == wilson(value * 200, 200)
    interval = rate_interval([value] * 200, samples=4, seed=0)
    assert interval.high - interval.low > 0.015
    assert rate_interval([Fraction(0)] * 200, samples=2, seed=0).high == pytest.approx(0.018845, abs=1e-6)
    paired = paired_normal([value - value] * 200)
    assert (paired.low, paired.high) == pytest.approx((-0.0097030, 0.0097030), abs=1e-6)
    assert paired_normal([Fraction(1)] * 200).low == pytest.approx(0.973353, abs=1e-4)


def test_all_alike_in_both_runs():
    keys = [f"o__r{index % 3}-{index}" for index in range(30)]
    none = {key: Fraction(0) for key in keys}
    base = GradedRun("base", "h", "d", 2, none)
    found = compare(base, GradedRun("other", "h", "d", 2, none))
    assert found.normal.low < 0 < found.normal.high and not found.normal.excludes_zero
    assert found.bootstrap is None and found.clustered is None and found.p_value == 1
