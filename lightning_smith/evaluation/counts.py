"""Verdicts of an evaluation and the sums that they must keep.

Every rollout that was planned ends in exactly one category: resolved, unresolved, empty, error or missing.
A rollout without a verdict is never taken for an unresolved one, and never left out of the denominator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

from lightning_smith.contracts.outcome import INVALID_OUTCOMES, Outcome
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl, write_jsonl
from lightning_smith.evaluation.paired import GradedRun


class Category(StrEnum):
    """Where the official report puts one planned rollout."""

    RESOLVED = "resolved"
    """Every FAIL_TO_PASS and PASS_TO_PASS test passed."""
    UNRESOLVED = "unresolved"
    """The tests ran and at least one of them did not pass."""
    EMPTY = "empty"
    """The prediction holds no patch."""
    ERROR = "error"
    """No test report: the patch did not apply, the tests ran out of time, or they could not be run."""
    MISSING = "missing"
    """There is no prediction."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one planned rollout; one line of verdicts.jsonl.

    `outcome` says how the rollout ended, by the names that training uses; None where no rollout was
    recorded. `reason` tells the kinds of error apart. `ours` is what the grader of training makes of the patch; None
    where no test ran. It has tested the patch itself if `tested`, and read the official log if not. `hits` are what the
    scan (`grading/scan.py`) finds in the patch.
    """

    instance_id: str
    sample: int
    resolved: bool
    category: Category
    outcome: Outcome | None
    reason: str | None = None
    ours: Outcome | None = None
    tested: bool = False
    hits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.resolved != (self.category is Category.RESOLVED):
            raise ValueError(f"{self.instance_id}: resolved is {self.resolved} in category {self.category}")

    @property
    def graded(self) -> bool:
        """Whether this says something about the policy: a service that failed does not."""
        return self.category is not Category.MISSING and self.outcome not in INVALID_OUTCOMES

    @property
    def disputed(self) -> bool:
        """Whether the grader of training and the official one disagree on whether the patch resolves."""
        return self.ours is not None and (self.ours is Outcome.SOLVED) != self.resolved

    def to_dict(self) -> dict[str, Any]:
        """Plain values for one JSON line."""
        return {
            **asdict(self),
            "category": self.category.value,
            "outcome": self.outcome.value if self.outcome else None,
            "ours": self.ours.value if self.ours else None,
            "hits": list(self.hits),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Verdict:
        """Return the inverse of `to_dict`. Raise UserError for a key or a value that does not belong."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(row) - known):
            raise UserError(f"verdict of {row.get('instance_id')} has an unknown key {unknown[0]!r}")
        try:
            outcomes = {key: Outcome(row[key]) if row[key] else None for key in ("outcome", "ours")}
            hits = tuple(row.get("hits", ()))
            return cls(**{**row, **outcomes, "category": Category(row["category"]), "hits": hits})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"verdict of {row.get('instance_id')} is malformed: {error}") from None


def write_verdicts(path: Path | str, verdicts: Iterable[Verdict]) -> None:
    """Write verdicts as JSON lines, ordered by sample and instance."""
    ordered = sorted(verdicts, key=lambda verdict: (verdict.sample, verdict.instance_id))
    write_jsonl(path, (verdict.to_dict() for verdict in ordered))


def read_verdicts(path: Path | str) -> list[Verdict]:
    """Read verdicts. Raise UserError if one instance and sample occurs twice."""
    verdicts = [Verdict.from_dict(row) for row in read_jsonl(path)]
    seen = Counter((verdict.instance_id, verdict.sample) for verdict in verdicts)
    for (instance_id, sample), times in seen.items():
        if times > 1:
            raise UserError(f"{path} holds {times} verdicts on {instance_id} sample {sample}: grade again")
    return verdicts


def count_categories(verdicts: Sequence[Verdict], *, instances: int, samples: int) -> dict[str, int]:
    """Verdicts by category. Raise UserError unless they sum to instances x samples."""
    counts = Counter(verdict.category for verdict in verdicts)
    total, planned = sum(counts.values()), instances * samples
    if total != planned:
        raise UserError(
            f"the verdicts sum to {total} but {instances} instances x {samples} samples are {planned} "
            "rollouts: run the predict and the grade rule again"
        )
    return {category.value: counts[category] for category in Category}


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Verdicts by how the rollout ended; `missing` counts those for which no rollout was recorded."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {**{outcome.value: counts[outcome] for outcome in Outcome}, "missing": counts[None]}


def suspicious(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return those whose patch uses what forging results takes, whatever the tests say of it."""
    return [verdict for verdict in verdicts if verdict.hits]


def instance_means(verdicts: Iterable[Verdict], samples: int) -> dict[str, Fraction]:
    """Resolved samples by instance over all planned ones: what the official denominator is made of."""
    resolved: Counter[str] = Counter()
    for verdict in verdicts:
        resolved[verdict.instance_id] += verdict.resolved
    return {instance_id: Fraction(count, samples) for instance_id, count in resolved.items()}


def graded_means(verdicts: Iterable[Verdict]) -> dict[str, Fraction]:
    """Resolved share by instance over graded samples alone; instances without one are absent."""
    graded: dict[str, list[bool]] = {}
    for verdict in verdicts:
        if verdict.graded:
            graded.setdefault(verdict.instance_id, []).append(verdict.resolved)
    return {instance_id: Fraction(sum(values), len(values)) for instance_id, values in graded.items()}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluated checkpoint: its verdicts and the summary that `grade` wrote beside them (counts.json)."""

    name: str
    summary: Mapping[str, Any]
    verdicts: Sequence[Verdict]

    @property
    def samples(self) -> int:
        """Rollouts planned for each instance."""
        return self.summary["samples"]

    def run(self) -> GradedRun:
        """Return what the paired comparison needs."""
        return GradedRun(
            name=self.name,
            harness=self.summary["harness"],
            dataset=self.summary["dataset_sha256"],
            samples=self.samples,
            resolved=graded_means(self.verdicts),
        )


def read_evaluation(folder: Path | str, name: str) -> Evaluation:
    """Read counts.json and verdicts.jsonl of one evaluated checkpoint and check that they agree."""
    folder = Path(folder)
    summary = read_json(folder / "counts.json")
    if not (summary.get("instances") and summary.get("samples")):
        raise UserError(
            f"{folder / 'counts.json'} is of no instance: predict on a data set that holds some, and grade"
        )
    verdicts = read_verdicts(folder / "verdicts.jsonl")
    try:
        counts = count_categories(verdicts, instances=summary["instances"], samples=summary["samples"])
        stated, _ = summary["counts"], (summary["harness"], summary["dataset_sha256"])
    except KeyError as error:
        raise UserError(
            f"{folder / 'counts.json'} lacks the key {error}: grade this checkpoint again"
        ) from None
    if counts != stated:
        raise UserError(
            f"{folder / 'counts.json'} counts {stated} but verdicts.jsonl beside it {counts}: grade again"
        )
    # Gradings without a scan do not have the key.
    if summary.get("suspicious") not in (None, found := len(suspicious(verdicts))):
        raise UserError(
            f"{folder / 'counts.json'} counts {summary['suspicious']} suspicious patches but verdicts.jsonl beside it "
            f"{found}: grade again"
        )
    return Evaluation(name, summary, verdicts)
