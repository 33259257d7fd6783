"""The record of one rollout and how its outcome is named."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.text import encodable


class Outcome(StrEnum):
    """How a rollout ended. Counts over all outcomes sum to the rollouts that were dispatched."""

    SOLVED = "solved"
    """Every FAIL_TO_PASS and PASS_TO_PASS test that decides passed, after a submission unless others count too."""
    UNSOLVED = "unsolved"
    """Submitted (an empty patch included), and at least one of those tests did not pass."""
    AGENT_LIMIT = "agent_limit"
    """Ran out of turns, tokens or time before it submitted, and did not solve the task."""
    FORMAT_ERROR = "format_error"
    """Its replies did not hold exactly one command, more often than allowed."""
    BLOCKED = "blocked"
    """Ended because it asked for what is refused, more often than allowed."""
    TAMPERED = "tampered"
    """Its patch forged results: tests passed whatever they expected, the canary test that must fail did not, every
    test passed beside canary tests that did not read right, or the exit status disagreed with the report."""
    GRADER_ERROR = "grader_error"
    """The tests could not be run; says nothing about the policy."""
    INFRA = "infra"
    """A service, the sandbox or the machine failed; says nothing about the policy."""


INVALID_OUTCOMES = frozenset({Outcome.GRADER_ERROR, Outcome.INFRA})
"""Outcomes that carry no reward: retried, then masked and counted, never a reward of 0."""


class Ending(StrEnum):
    """How a conversation ended."""

    SUBMITTED = "submitted"
    LIMIT = "limit"
    """Turns, time or context ran out, or the last reply met an error of the harness."""
    FORMAT = "format"
    """Too many replies without exactly one command."""
    REFUSALS = "refusals"
    """Too many commands that the guard refused."""
    FAILURE = "failure"
    """A service, the sandbox or the machine failed, then or at any time afterwards."""


UNSUBMITTED = frozenset({Ending.LIMIT, Ending.FORMAT})
"""Ends without a submission of which the changes can be graded all the same, as upstream does."""


class PatchState(StrEnum):
    """What a rollout left."""

    WHOLE = "whole"
    EMPTY = "empty"
    REFUSED = "refused"
    """Its changes make no patch: a link out of the tree, too many bytes."""


def decide_outcome(
    ending: Ending,
    *,
    graded: bool,
    patch: PatchState = PatchState.WHOLE,
    tests: Outcome | None = None,
) -> Outcome | None:
    """Return the outcome of a rollout from all that is known at its end. There is no other place that decides it.

    | ending    | graded here | patch          | tests                      | outcome      | reward |
    |---|---|---|---|---|---|
    | failure   | any         | any            | any                        | infra        | none   |
    | refusals  | any         | any            | any                        | blocked      | 0      |
    | limit     | any         | any            | unsolved, not run          | agent_limit  | 0      |
    | format    | any         | any            | unsolved, not run          | format_error | 0      |
    | both      | yes         | whole          | solved, tampered           | the same     | 1, 0   |
    | both      | yes         | whole          | grader_error               | grader_error | none   |
    | submitted | no          | any            | not run                    | none yet     | none   |
    | submitted | yes         | empty, refused | not run                    | unsolved     | 0      |
    | submitted | yes         | whole          | solved, unsolved, tampered | the same     | 1, 0, 0 |
    | submitted | yes         | whole          | grader_error, or none      | grader_error | none   |

    Args:
        graded: whether the rollout runs its tests itself; in evaluation the official harness does, afterwards.
        tests: what `grading.decide` says of the test run, GRADER_ERROR if it failed, None if there was none. What
            did not submit is tested only where `agent.grade_unsubmitted` says so.
    """
    if ending in UNSUBMITTED and graded and patch is PatchState.WHOLE and tests is not None:
        return _ENDED[ending] if tests is Outcome.UNSOLVED else tests
    if ending is not Ending.SUBMITTED:
        return _ENDED[ending]
    if not graded:
        return None
    if patch is not PatchState.WHOLE:
        return Outcome.UNSOLVED
    return tests if tests in _TESTED else Outcome.GRADER_ERROR


_ENDED = {
    Ending.LIMIT: Outcome.AGENT_LIMIT,
    Ending.FORMAT: Outcome.FORMAT_ERROR,
    Ending.REFUSALS: Outcome.BLOCKED,
    Ending.FAILURE: Outcome.INFRA,
}
_TESTED = frozenset({Outcome.SOLVED, Outcome.UNSOLVED, Outcome.TAMPERED})


def reward_of(outcome: Outcome | None) -> float | None:
    """1.0 for solved, 0.0 for whatever else says something about the policy, None for the rest."""
    if outcome is None or outcome in INVALID_OUTCOMES:
        return None
    return float(outcome is Outcome.SOLVED)


MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One rollout of probe, training or evaluation; one line of a rollout log.

    `outcome` is None only between a submission and its official grading (evaluation).
    Times are seconds of wall clock; `model_s` is spent waiting for the policy, `grade_s` in tests.
    `prompt_tokens` adds up the prompts of all turns, `max_prompt_tokens` is the longest one. `blocked` counts
    refused commands by kind (`guard.Kind`), `opaque` commands whose text does not say what they start.
    `patch_sha256` is None where no patch was left, or an empty one. `in_submodules` names changed files that a patch
    cannot hold, because they lie in submodules, at most MAX_NAMED.
    Of a graded patch: `grade` says which tests decided (`task.Grade`), `checks` what stands behind the verdict
    (`grades.Check`), `harness_resolved` what SWE-smith's own harness made of the same log, if it was asked, and `hits`
    what the patch uses that forging results takes (`scan.Hit`).
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
    max_prompt_tokens: int = 0
    blocked: Mapping[str, int] = field(default_factory=dict)
    opaque: int = 0
    grade: str | None = None
    checks: tuple[str, ...] = ()
    harness_resolved: bool | None = None
    in_submodules: tuple[str, ...] = ()
    ending: Ending | None = None
    """How the conversation ended, which `solved` does not tell; None if there was none."""
    hits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.error is not None:  # may quote names of files, whose bytes need not be UTF-8
            object.__setattr__(self, "error", encodable(self.error))
        if self.outcome in INVALID_OUTCOMES and self.reward is not None:
            raise ValueError(f"{self.instance_id}: a rollout that ended in {self.outcome} carries no reward")

    @property
    def valid(self) -> bool:
        """Whether the record says something about the policy."""
        return self.outcome not in INVALID_OUTCOMES

    def to_dict(self) -> dict[str, Any]:
        """Plain values for one JSON line."""
        return {
            **asdict(self),
            "outcome": self.outcome.value if self.outcome else None,
            "blocked": dict(self.blocked),
            "checks": list(self.checks),
            "in_submodules": list(self.in_submodules),
            "ending": self.ending.value if self.ending else None,
            "hits": list(self.hits),
        }

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> RolloutRecord:
        """Return the inverse of `to_dict`. Raise UserError for a missing key, an unknown key or an unknown outcome."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(row) - known):
            raise UserError(f"rollout record of {row.get('instance_id')} has an unknown key {unknown[0]!r}")
        try:
            outcome = Outcome(row["outcome"]) if row["outcome"] is not None else None
            lists = {name: tuple(row.get(name, ())) for name in ("checks", "in_submodules", "hits")}
            ending = Ending(row["ending"]) if row.get("ending") is not None else None
            return cls(**{**row, **lists, "outcome": outcome, "ending": ending})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"rollout record of {row.get('instance_id')} is malformed: {error}") from None


def blocked_counts(records: Iterable[RolloutRecord]) -> dict[str, int]:
    """Refused commands by kind, summed over records and sorted by kind."""
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.blocked)
    return dict(sorted(counts.items()))


def count_disagreements(records: Iterable[RolloutRecord]) -> int:
    """Rollouts of whose tests' log the grader and SWE-smith's harness made different things. None was solved."""
    return sum(
        record.outcome is not Outcome.SOLVED
        if record.harness_resolved
        else record.harness_resolved is False and record.outcome is Outcome.GRADER_ERROR
        for record in records
    )


def suspicious(records: Iterable[RolloutRecord]) -> list[RolloutRecord]:
    """Rollouts whose patch uses what forging results takes (`RolloutRecord.hits`), whatever became of it."""
    return [record for record in records if record.hits]


def unsubmitted_share(endings: Iterable[Ending | None]) -> float | None:
    """Share of solved rollouts that did not submit, from how they ended; None if there are none.

    With `agent.grade_unsubmitted` they are rewarded alike, so that a policy can learn never to submit.
    """
    known = [ending for ending in endings if ending is not None]
    return round(sum(ending in UNSUBMITTED for ending in known) / len(known), 6) if known else None


def solved_unsubmitted(records: Iterable[RolloutRecord]) -> float | None:
    """`unsubmitted_share` of the solved ones among `records`."""
    return unsubmitted_share(record.ending for record in records if record.outcome is Outcome.SOLVED)


def warn_unsubmitted(share: float | None, before: float | None = None) -> str | None:
    """Return a sentence if most solved rollouts did not submit, or a quarter of them more than `before`; else None."""
    if share is None or (share <= 0.5 and (before is None or share <= before + 0.25)):
        return None
    grown = "" if before is None else f" ({before:.0%} at first)"
    return (
        f"warning: {share:.0%} of the solved rollouts did not submit{grown}; agent.grade_unsubmitted rewards them "
        "alike, so that a policy can learn never to submit"
    )


def rollout_seed(run_seed: int, instance_id: str, sample: int, *, stage: str) -> int:
    """Seed of one rollout: 31 bits, distinct within a group, the same again after a resume.

    Stages that are given the same seed draw apart: what the probe saw of a task must not come again in training.
    """
    digest = hashlib.sha256(f"{stage}\0{run_seed}\0{instance_id}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF
