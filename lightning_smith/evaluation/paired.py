"""Statistics of an evaluation: intervals of a rate, and the paired comparison of two runs.

Two runs on the same instances are paired data: what they disagree about carries the information, what both
resolve or both fail does not. Adding the two runs' standard errors, as if the instances were different ones,
calls real differences noise, so no unpaired test is offered here.

Sources of the formulas
- Wilson interval: E. B. Wilson, JASA 22 (1927) 209-212; Brown, Cai, DasGupta, Statistical Science 16 (2001)
  101-133.
- McNemar's test, exact form: Q. McNemar, Psychometrika 12 (1947) 153-157; under the null hypothesis each
  discordant pair falls either way with probability 1/2, so the smaller count is Binomial(lost + gained,
  1/2).
- Sign-flip test: R. A. Fisher, The Design of Experiments (1935) section 21. With one sample per instance it
  is McNemar's exact test.
- Paired interval: A. Agresti, Categorical Data Analysis (3rd ed., 2013) section 11.1.1 (Wald interval of a
  difference of correlated proportions); for means of several samples the same formula is the normal
  interval of a mean.
- Where all pairs are alike, that interval has no width, and the adjusted one stands in for it: A. Agresti, Y. Min,
  Statistics in Medicine 24 (2005) 729-740: half a pair more in each cell.
- Clustered interval: the jackknife over clusters with a t distribution of one degree of freedom less than clusters,
  recommended where clusters are few: R. M. Bell, D. F. McCaffrey, Survey Methodology 28 (2002) 169-181; J. G.
  MacKinnon, M. O. Nielsen, M. D. Webb, Journal of Econometrics 232 (2023) 272-299.
- Distribution function of t with whole degrees of freedom: M. Abramowitz, I. Stegun, Handbook of Mathematical
  Functions (1964) 26.7.3 and 26.7.4.
- Percentile bootstrap: B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap (1993) section 13.3.
- Holm's correction: S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

from lightning_smith.core.errors import UserError

RESAMPLES = 10_000

_REPOSITORY = re.compile(r"(.+)\.[0-9a-f]{8}\..+|(.+__.+)-\d+")
"""Ids of SWE-smith, owner__name.commit.kind, and of SWE-bench, owner__name-number."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval of a rate or of a difference of rates, as fractions (0.042 is 4.2 points)."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside; an end that is exactly 0 counts as inside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class GradedRun:
    """What one evaluation says about each instance.

    `resolved` maps an instance id to the mean of its graded samples (0 or 1 with one sample each). An
    instance without any graded sample is absent: it says nothing about the policy. `harness` (with version)
    and `dataset` (a hash) name what the verdicts rest on.
    """

    name: str
    harness: str
    dataset: str
    samples: int
    resolved: Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run against its base, on the instances that both graded.

    `gained` and `lost` count instances whose mean rose or fell. `normal` is the closed-form paired interval,
    `bootstrap` the percentile interval over resampled instances, None where all differences are alike. `clustered`
    takes the `clusters` repositories of the instances as the units; None where ids do not name them, where there is
    one, or where all of them differ alike. `p_value` is two-sided and exact.
    """

    pairs: int
    only_base: int
    only_other: int
    gained: int
    lost: int
    difference: float
    normal: Interval
    bootstrap: Interval | None
    clusters: int
    clustered: Interval | None
    p_value: float
    test: str


def critical_value(level: float) -> float:
    """Return the z of a two-sided interval, 1.96 for a level of 0.95."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def t_critical_value(degrees: int, level: float = 0.95) -> float:
    """Return the t of a two-sided interval with so many degrees of freedom, 2.447 for 6 and a level of 0.95."""
    if degrees < 1 or not 0 < level < 1:
        raise ValueError(f"there is no t with {degrees} degrees of freedom at a level of {level}")
    low, high = 0.0, 1.0
    while _t_mass(high, degrees) < level:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_mass(middle, degrees) < level else (low, middle)
    return high


def _t_mass(t: float, degrees: int) -> float:
    """Probability that a t with so many degrees of freedom lies between -t and t."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(3 if odd else 2, degrees - 1, 2):
        term *= (step - 1) / step * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def repository_of(instance_id: str) -> str | None:
    """Return the repository that an id of SWE-smith or SWE-bench names, as `owner__name`; None for other ids."""
    found = _REPOSITORY.fullmatch(instance_id)
    return (found[1] or found[2]) if found else None


def wilson(resolved: float | Fraction, total: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of `resolved` out of `total` independent instances; a part of one counts as a part.

    centre (p + z^2/2n) / (1 + z^2/n), half width z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n).
    """
    if not 0 <= resolved <= total or total == 0:
        raise ValueError(f"{resolved} of {total} is not a proportion")
    z, p = critical_value(level), float(resolved / total)
    scale = 1 + z * z / total
    centre = (p + z * z / (2 * total)) / scale
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / scale
    # At 0 and at `total` the formula gives the bound exactly; rounding must not step over it.
    low = 0.0 if resolved == 0 else centre - half
    high = 1.0 if resolved == total else centre + half
    return Interval(low, high)


def paired_normal(differences: Sequence[Fraction], level: float = 0.95) -> Interval:
    """Closed-form interval of the mean of per-instance differences.

    d +- z sqrt(mean(d_i^2) - d^2) / sqrt(n). With one sample per instance, `gained` and `lost` discordant
    pairs, this is (gained - lost)/n +- z sqrt(gained + lost - (gained - lost)^2 / n) / n. Where all differences are
    alike, which says little of a width of 0, two pairs more are counted, one without a difference and half of one in
    either direction.
    """
    n = len(differences)
    if n == 0:
        raise ValueError("no pairs")
    total, squares = sum(differences, Fraction(0)), sum((d * d for d in differences), Fraction(0))
    if len(set(differences)) == 1:
        n, squares = n + 2, squares + 1
    mean = total / n
    variance = squares / n - mean * mean
    half = critical_value(level) * math.sqrt(variance / n)
    return Interval(max(-1.0, float(mean) - half), min(1.0, float(mean) + half))


def paired_clustered(differences: Mapping[str, Fraction], level: float = 0.95) -> tuple[int, Interval | None]:
    """Return the number of repositories among these instances, and the interval of the mean difference with them as the
    units.

    With n instances, G repositories, n_g instances in one of them and d_g the mean difference without these:
    d +- t(G - 1) sqrt((G - 1) / G sum((d_g - d)^2)). None where an id names no repository, where there is one, or where
    leaving any out changes nothing.
    """
    clusters: dict[str | None, list[Fraction]] = {}
    for instance_id, difference in differences.items():
        clusters.setdefault(repository_of(instance_id), []).append(difference)
    if None in clusters:
        return 0, None
    count, n = len(clusters), len(differences)
    if count == 1:
        return 1, None
    total = sum(differences.values(), Fraction(0))
    mean = total / n
    without = [(total - sum(part)) / (n - len(part)) for part in clusters.values()]
    variance = Fraction(count - 1, count) * sum((left - mean) ** 2 for left in without)
    if variance == 0:
        return count, None
    half = t_critical_value(count - 1, level) * math.sqrt(variance)
    return count, Interval(max(-1.0, float(mean) - half), min(1.0, float(mean) + half))


def mcnemar_exact(lost: int, gained: int) -> float:
    """Two-sided exact p of McNemar's test: min(1, 2 P[Binomial(lost + gained, 1/2) <= min(lost, gained)])."""
    discordant = lost + gained
    tail = sum(math.comb(discordant, k) for k in range(min(lost, gained) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**discordant)))


def sign_flip_exact(differences: Sequence[Fraction]) -> float:
    """Two-sided exact p of the sign-flip test on per-instance differences.

    Under the null hypothesis every difference is as likely as its opposite, so the sum is a random walk
    with steps +-|d_i|; its whole distribution is counted, in integers. The p is the share of the 2^m sign
    patterns of the m differences that are not 0 whose sum is at least as far from 0 as the observed one.
    """
    scale = math.lcm(*(d.denominator for d in differences)) if differences else 1
    steps = [abs(int(d * scale)) for d in differences if d]
    observed = abs(int(sum(differences, Fraction(0)) * scale))
    patterns = {0: 1}
    for step in steps:
        moved: dict[int, int] = {}
        for total, count in patterns.items():
            moved[total + step] = moved.get(total + step, 0) + count
            moved[total - step] = moved.get(total - step, 0) + count
        patterns = moved
    extreme = sum(count for total, count in patterns.items() if abs(total) >= observed)
    return float(Fraction(extreme, 2 ** len(steps)))


def bootstrap_mean(
    values: Sequence[Fraction] | Sequence[float],
    *,
    seed: int,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of a mean, resampling instances; the same seed gives the same interval.

    An instance's samples stay together: instances are drawn, not rollouts.
    """
    import numpy as np

    array = np.asarray([float(value) for value in values])
    if array.size == 0:
        raise ValueError("no values")
    rng = np.random.default_rng(seed)
    # One row at a time keeps memory at O(n), and the stream does not depend on a block size.
    means = np.array([array[rng.integers(0, array.size, array.size)].mean() for _ in range(resamples)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def rate_interval(means: Sequence[Fraction], *, samples: int, seed: int, level: float = 0.95) -> Interval:
    """Interval of the resolved rate: Wilson with one sample per instance, else the bootstrap over instances.

    `means` holds one value for every instance of the evaluation. Rollouts that were not graded count as 0
    in it, as they do in the official score, whose denominator is all instances. Where all values are alike, as when no
    sample resolves, every resample is the same, and the interval is Wilson's over instances.
    """
    if samples == 1 or len(set(means)) == 1:
        return wilson(sum(means, Fraction(0)), len(means), level)
    return bootstrap_mean(means, seed=seed, level=level)


def holm(p_values: Iterable[float]) -> list[float]:
    """Holm's step-down correction, in the order given: what remains of a p when the best of several is
    looked at."""
    values = list(p_values)
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, values[index] * (len(values) - rank)))
        adjusted[index] = largest
    return adjusted


def compare(base: GradedRun, other: GradedRun, *, seed: int = 0, level: float = 0.95) -> Comparison:
    """Compare two runs on the instances that both graded.

    Raise UserError if the runs rest on different harnesses or data sets, if one instance has two
    spellings, or if no instance was graded in both.
    """
    _refuse_unlike(base, other)
    common = sorted(base.resolved.keys() & other.resolved.keys())
    if not common:
        raise UserError(
            f"{base.name} and {other.name} have no graded instance in common: "
            "evaluate both on the same instances"
        )
    by_instance = {key: other.resolved[key] - base.resolved[key] for key in common}
    differences = list(by_instance.values())
    clusters, clustered = paired_clustered(by_instance, level)
    gained = sum(difference > 0 for difference in differences)
    lost = sum(difference < 0 for difference in differences)
    single = base.samples == other.samples == 1
    return Comparison(
        pairs=len(common),
        only_base=len(base.resolved) - len(common),
        only_other=len(other.resolved) - len(common),
        gained=gained,
        lost=lost,
        difference=float(sum(differences, Fraction(0)) / len(common)),
        normal=paired_normal(differences, level),
        bootstrap=bootstrap_mean(differences, seed=seed, level=level) if len(set(differences)) > 1 else None,
        clusters=clusters,
        clustered=clustered,
        p_value=mcnemar_exact(lost, gained) if single else sign_flip_exact(differences),
        test="exact McNemar" if single else "exact sign-flip",
    )


def _refuse_unlike(base: GradedRun, other: GradedRun) -> None:
    """Verdicts of different harnesses, data or spellings of one instance are not pairs."""
    if base.harness != other.harness:
        raise UserError(
            f"{base.name} was graded by {base.harness} and {other.name} by {other.harness}: verdicts of "
            "different harnesses are not pairs, grade both with one version"
        )
    if base.dataset != other.dataset:
        raise UserError(
            f"{base.name} was graded on data set {base.dataset[:12]} and {other.name} on "
            f"{other.dataset[:12]}: evaluate both on one data set"
        )
    spellings: dict[str, str] = {}
    for key in sorted(base.resolved.keys() | other.resolved.keys()):
        plain = "".join(character for character in key.lower() if character.isalnum())
        if spellings.setdefault(plain, key) != key:
            raise UserError(
                f"instance {key} of {base.name} or {other.name} is also spelled {spellings[plain]}: "
                "use the data set's own ids in both runs"
            )
