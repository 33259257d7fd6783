"""The record of one rollout and how its outcome is named."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from lightning_smith.errors import UserError


class Outcome(StrEnum):
    """How a rollout ended. Counts over all outcomes sum to the rollouts that were dispatched."""

    SOLVED = "solved"
    """Submitted, and every FAIL_TO_PASS and PASS_TO_PASS test passed."""
    UNSOLVED = "unsolved"
    """Submitted (an empty patch included), and at least one of those tests did not pass."""
    AGENT_LIMIT = "agent_limit"
    """Ran out of turns, tokens or time before it submitted."""
    FORMAT_ERROR = "format_error"
    """Its replies did not hold exactly one command, more often than allowed."""
    BLOCKED = "blocked"
    """Ended because it asked for what is refused, more often than allowed."""
    TAMPERED = "tampered"
    """Its patch steered the test run: a canary test read wrong, or the exit code disagreed with the report."""
    GRADER_ERROR = "grader_error"
    """The tests could not be run; says nothing about the policy."""
    INFRA = "infra"
    """A service, the sandbox or the machine failed; says nothing about the policy."""


INVALID_OUTCOMES = frozenset({Outcome.GRADER_ERROR, Outcome.INFRA})
"""Outcomes that carry no reward: retried, then masked and counted, never a reward of 0."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One rollout of probe, training or evaluation; one line of a rollout log.

    `outcome` is None only between a submission and its official grading (evaluation).
    Times are seconds of wall clock; `model_s` is spent waiting for the policy, `grade_s` in tests.
    """

    instance_id: str
    sample: int
    outcome: Outcome | None
    reward: float | None
    resolved: bool | None
    turns: int
    prompt_tokens: int
    completion_tokens: int
    wall_s: float
    model: str
    model_revision: str
    image_digest: str
    seed: int
    error: str | None = None
    model_s: float = 0.0
    grade_s: float = 0.0
    patch_sha256: str | None = None
    trajectory_sha256: str | None = None

    def __post_init__(self) -> None:
        if self.outcome in INVALID_OUTCOMES and self.reward is not None:
            raise ValueError(f"{self.instance_id}: a rollout that ended in {self.outcome} carries no reward")

    @property
    def valid(self) -> bool:
        """Whether the record says something about the policy."""
        return self.outcome not in INVALID_OUTCOMES

    def to_dict(self) -> dict[str, Any]:
        """Plain values for one JSON line."""
        return {**asdict(self), "outcome": self.outcome.value if self.outcome else None}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> RolloutRecord:
        """The inverse of `to_dict`; raises UserError for a missing key, an unknown key or an unknown outcome."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(row) - known):
            raise UserError(f"rollout record of {row.get('instance_id')} has an unknown key {unknown[0]!r}")
        try:
            outcome = Outcome(row["outcome"]) if row["outcome"] is not None else None
            return cls(**{**row, "outcome": outcome})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"rollout record of {row.get('instance_id')} is malformed: {error}") from None


def rollout_seed(run_seed: int, instance_id: str, sample: int) -> int:
    """Seed of one rollout: 31 bits, distinct within a group, the same again after a resume."""
    digest = hashlib.sha256(f"{run_seed}\0{instance_id}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF
