"""Rollout records: validity, round trip, seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.contracts.outcome import (
    INVALID_OUTCOMES,
    UNSUBMITTED,
    Ending,
    Outcome,
    PatchState,
    RolloutRecord,
    blocked_counts,
    decide_outcome,
    reward_of,
    rollout_seed,
)
from lightning_smith.core.errors import UserError


def record(**changes: object) -> RolloutRecord:
    fields = {
        "instance_id": "a", "sample": 0, "outcome": Outcome.SOLVED, "reward": 1.0, "resolved": True, "turns": 3,
        "prompt_tokens": 10, "completion_tokens": 5, "wall_s": 0.5, "model": "m", "model_revision": "r",
        "image_digest": "sha256:0", "seed": 1,
    }  # fmt: skip
    return RolloutRecord(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", [Outcome.INFRA, Outcome.GRADER_ERROR])
def test_a_rollout_that_says_nothing_about_the_policy_carries_no_reward(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="carries no reward"):
        record(outcome=outcome, reward=0.0)
    assert not record(outcome=outcome, reward=None, resolved=None).valid


@given(st.sampled_from([*Outcome, None]), st.text(), st.none() | st.text())
def test_records_survive_a_round_trip(outcome: Outcome | None, name: str, error: str | None) -> None:
    kept = record(outcome=outcome, instance_id=name, error=error, reward=None)
    assert RolloutRecord.from_dict(kept.to_dict()) == kept


@pytest.mark.parametrize("change", [{"outcome": "won"}, {"extra": 1}, {"seed": ...}])
def test_a_malformed_record_is_refused(change: dict) -> None:
    row = {**record().to_dict(), **change}
    row = {key: value for key, value in row.items() if value is not ...}
    with pytest.raises(UserError, match="rollout record of a"):
        RolloutRecord.from_dict(row)


def test_seeds_differ_within_a_group_and_are_stable() -> None:
    seeds = [rollout_seed(1, "task", sample, stage="probe") for sample in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(1, "task", 3, stage="probe") == seeds[3]
    assert rollout_seed(2, "task", 3, stage="probe") != seeds[3]
    assert rollout_seed(1, "other", 3, stage="probe") != seeds[3]
    assert rollout_seed(1, "task", 3, stage="predict") != seeds[3], "a seed that two stages share"


@pytest.mark.parametrize(
    ("ending", "patch", "tests", "outcome", "reward"),
    [
        (Ending.FAILURE, PatchState.WHOLE, Outcome.SOLVED, Outcome.INFRA, None),
        (Ending.LIMIT, PatchState.EMPTY, None, Outcome.AGENT_LIMIT, 0.0),
        (Ending.LIMIT, PatchState.WHOLE, Outcome.SOLVED, Outcome.SOLVED, 1.0),
        (Ending.LIMIT, PatchState.WHOLE, Outcome.UNSOLVED, Outcome.AGENT_LIMIT, 0.0),
        (Ending.LIMIT, PatchState.WHOLE, Outcome.TAMPERED, Outcome.TAMPERED, 0.0),
        (Ending.LIMIT, PatchState.WHOLE, Outcome.GRADER_ERROR, Outcome.GRADER_ERROR, None),
        (Ending.LIMIT, PatchState.REFUSED, None, Outcome.AGENT_LIMIT, 0.0),
        (Ending.FORMAT, PatchState.EMPTY, None, Outcome.FORMAT_ERROR, 0.0),
        (Ending.FORMAT, PatchState.WHOLE, Outcome.SOLVED, Outcome.SOLVED, 1.0),
        (Ending.FORMAT, PatchState.WHOLE, Outcome.UNSOLVED, Outcome.FORMAT_ERROR, 0.0),
        (Ending.REFUSALS, PatchState.WHOLE, Outcome.SOLVED, Outcome.BLOCKED, 0.0),
        (Ending.REFUSALS, PatchState.EMPTY, None, Outcome.BLOCKED, 0.0),
        (Ending.SUBMITTED, PatchState.EMPTY, None, Outcome.UNSOLVED, 0.0),
        (Ending.SUBMITTED, PatchState.REFUSED, None, Outcome.UNSOLVED, 0.0),
        (Ending.SUBMITTED, PatchState.WHOLE, Outcome.SOLVED, Outcome.SOLVED, 1.0),
        (Ending.SUBMITTED, PatchState.WHOLE, Outcome.UNSOLVED, Outcome.UNSOLVED, 0.0),
        (Ending.SUBMITTED, PatchState.WHOLE, Outcome.TAMPERED, Outcome.TAMPERED, 0.0),
        (Ending.SUBMITTED, PatchState.WHOLE, Outcome.GRADER_ERROR, Outcome.GRADER_ERROR, None),
        (Ending.SUBMITTED, PatchState.WHOLE, None, Outcome.GRADER_ERROR, None),
    ],
)
def test_the_table_of_outcomes(
    ending: Ending, patch: PatchState, tests: Outcome | None, outcome: Outcome, reward: float | None
) -> None:
    assert decide_outcome(ending, graded=True, patch=patch, tests=tests) is outcome
    assert reward_of(outcome) == reward


TESTED = st.sampled_from([Outcome.SOLVED, Outcome.UNSOLVED, Outcome.TAMPERED, Outcome.GRADER_ERROR, None])


@given(st.sampled_from(Ending), st.booleans(), st.sampled_from(PatchState), TESTED)
def test_every_ending_has_one_outcome_and_only_solved_tests_pay(
    ending: Ending, graded: bool, patch: PatchState, tests: Outcome | None
) -> None:
    outcome = decide_outcome(ending, graded=graded, patch=patch, tests=tests)
    reward = reward_of(outcome)
    paid = reward == 1.0
    assert paid == (
        ending in {Ending.SUBMITTED, *UNSUBMITTED}
        and graded
        and patch is PatchState.WHOLE
        and tests is Outcome.SOLVED
    )
    assert (outcome is None) == (ending is Ending.SUBMITTED and not graded)
    assert (reward is None) == (outcome is None or outcome in INVALID_OUTCOMES)
    assert record(outcome=outcome, reward=reward).valid == (outcome not in INVALID_OUTCOMES)


def test_a_record_of_an_older_log_reads_as_one_without_refusals() -> None:
    row = record(blocked={"git": 2}, opaque=1, max_prompt_tokens=9).to_dict()
    assert (row["blocked"], row["opaque"], row["max_prompt_tokens"]) == ({"git": 2}, 1, 9)
    older = {
        key: value for key, value in row.items() if key not in ("blocked", "opaque", "max_prompt_tokens")
    }
    assert RolloutRecord.from_dict(older) == record()


def test_refused_commands_are_summed_by_kind() -> None:
    records = [record(blocked={"install": 1, "git": 2}), record(), record(blocked={"git": 1})]
    assert blocked_counts(records) == {"git": 3, "install": 1} and not blocked_counts([record()])
