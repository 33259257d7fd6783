"""Evaluated checkpoints side by side: rates, intervals, and each checkpoint against its policy before
training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.counts import Category, Evaluation, instance_means
from lightning_smith.evaluation.paired import Comparison, Interval, compare, holm, rate_interval


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the table is made from: one evaluated checkpoint. `step` 0 is the policy before training."""

    recipe: str
    policy: str
    step: int
    trained_examples: int
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Row:
    """One measured row. `comparison` is None for the base; `p_holm` is corrected over all comparisons of the policy,
    which share its base and stand in one table."""

    checkpoint: Checkpoint
    resolved: int
    total: int
    interval: Interval
    comparison: Comparison | None
    p_holm: float | None

    @property
    def rate(self) -> float:
        """Resolved share of all planned rollouts; errors and missing ones stay in the denominator."""
        return self.resolved / self.total


def make_rows(checkpoints: Iterable[Checkpoint], *, seed: int) -> list[Row]:
    """Return rows ordered by policy, recipe and step, each compared with the evaluation of its policy before
    training.

    Raise UserError if a trained checkpoint has no step 0 of its policy to compare with, or if rows of one
    policy were made under different settings.
    """
    ordered = sorted(checkpoints, key=lambda item: (item.policy, item.recipe, item.step))
    bases = {item.policy: item for item in ordered if item.step == 0}
    for policy in {item.policy for item in ordered}:
        shared_settings([item.evaluation for item in ordered if item.policy == policy])
    comparisons = {
        (item.recipe, item.step): _against_base(item, bases, seed) for item in ordered if item.step > 0
    }
    corrected: dict[tuple[str, int], float] = {}
    for policy in bases:
        keys = [(item.recipe, item.step) for item in ordered if item.policy == policy and item.step > 0]
        corrected.update(zip(keys, holm(comparisons[key].p_value for key in keys), strict=True))
    return [_row(item, comparisons, corrected, seed) for item in ordered]


def _against_base(item: Checkpoint, bases: Mapping[str, Checkpoint], seed: int) -> Comparison:
    if item.policy not in bases:
        raise UserError(
            f"{item.evaluation.name} has no step 0 of policy {item.policy} to compare with: "
            "add 0 to the recipe's `evaluate`"
        )
    return compare(bases[item.policy].evaluation.run(), item.evaluation.run(), seed=seed)


def _row(
    item: Checkpoint,
    comparisons: Mapping[tuple[str, int], Comparison],
    corrected: Mapping[tuple[str, int], float],
    seed: int,
) -> Row:
    means = list(instance_means(item.evaluation.verdicts, item.evaluation.samples).values())
    key = (item.recipe, item.step)
    return Row(
        checkpoint=item,
        resolved=item.evaluation.summary["counts"][Category.RESOLVED.value],
        total=len(item.evaluation.verdicts),
        interval=rate_interval(means, samples=item.evaluation.samples, seed=seed),
        comparison=comparisons.get(key),
        p_holm=corrected.get(key),
    )


def shared_settings(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the settings that all of these evaluations were made under, with data set and harness.

    Turns, context and harness move a score by as much as training does, so rows of different settings do
    not belong into one table. Raise UserError naming the first setting that differs.
    """
    first, *others = evaluations
    settings = _settings(first)
    for other in others:
        found = _settings(other)
        for key in sorted(settings.keys() | found.keys()):
            if settings.get(key) != found.get(key):
                raise UserError(
                    f"{first.name} and {other.name} differ in {key} ({settings.get(key)} and "
                    f"{found.get(key)}): evaluate both under one setting"
                )
    return settings


def _settings(evaluation: Evaluation) -> dict[str, Any]:
    summary = evaluation.summary
    keys = ("dataset", "dataset_sha256", "instances", "samples", "harness", "executor", "harness_timeout_s")
    return {
        **{key: summary[key] for key in keys},
        **summary["rollouts"]["settings"],
        **{f"version of {name}": version for name, version in summary["rollouts"]["versions"].items()},
    }
