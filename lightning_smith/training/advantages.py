"""Advantages of GRPO: how much better a rollout did than the other rollouts of its task.

A = (r - mean) / (s + 1e-6) within a group, s the sample standard deviation (divisor n - 1), as in
"DeepSeekMath" (arXiv 2402.03300) and verl's `grpo` estimator. Only valid rollouts enter mean and deviation:
one without a reward (infrastructure or grader failure) says nothing about the policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

EPSILON = 1e-6


@dataclass(frozen=True)
class Advantages:
    """Advantages of a step, and what became of its groups and rollouts.

    `values` holds, for every kept group, one number a rollout, None for a masked one. Each group counts
    once in `mixed`, `uniform` (all valid rewards equal, advantages 0) or `dropped` (fewer than two valid
    rollouts).
    """

    values: dict[str, list[float | None]]
    mixed: int
    uniform: int
    dropped: int
    masked_rollouts: int


def group_advantages(rewards: Sequence[float | None]) -> list[float | None] | None:
    """Advantages of one group; None if fewer than two rollouts have a finite reward.

    A reward of None, NaN or infinity masks its rollout (None in the result). Equal rewards give exactly 0.
    """
    valid = [reward for reward in rewards if _usable(reward)]
    if len(valid) < 2:
        return None
    if min(valid) == max(valid):
        return [0.0 if _usable(reward) else None for reward in rewards]
    mean = math.fsum(valid) / len(valid)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in valid) / (len(valid) - 1))
    return [(reward - mean) / (deviation + EPSILON) if _usable(reward) else None for reward in rewards]


def step_advantages(groups: Mapping[str, Sequence[float | None]]) -> Advantages:
    """Advantages of all groups of a step, by instance id."""
    values: dict[str, list[float | None]] = {}
    mixed = uniform = dropped = masked = 0
    for instance_id, rewards in groups.items():
        masked += sum(not _usable(reward) for reward in rewards)
        group = group_advantages(rewards)
        if group is None:
            dropped += 1
            continue
        values[instance_id] = group
        if any(group):
            mixed += 1
        else:
            uniform += 1
    return Advantages(values, mixed, uniform, dropped, masked)


def _usable(reward: float | None) -> TypeGuard[float]:
    return reward is not None and math.isfinite(reward)
