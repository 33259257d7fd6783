"""Rollout records: validity, round trip, seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.errors import UserError
from lightning_smith.rollout.outcome import Outcome, RolloutRecord, rollout_seed


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
    seeds = [rollout_seed(1, "task", sample) for sample in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(1, "task", 3) == seeds[3]
    assert rollout_seed(2, "task", 3) != seeds[3]
    assert rollout_seed(1, "other", 3) != seeds[3]
