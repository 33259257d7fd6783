"""Length penalties of training: the published numbers, and what they must not do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.config.recipes import LengthPenalty
from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.training.advantages import group_advantages
from lightning_smith.training.rewards import group_rewards, shaped_reward

TURNS = LengthPenalty(80, 100, 0.1)
PROMPT = LengthPenalty(50_000, 64_000, 0.1)
SOLVED = RolloutRecord("a", 0, Outcome.SOLVED, 1.0, True, 3, 10, 5, 0.5, "m", "r", "d", 1)
UNSOLVED = replace(SOLVED, outcome=Outcome.UNSOLVED, reward=0.0, resolved=False)
INFRA = replace(SOLVED, outcome=Outcome.INFRA, reward=None, resolved=None)


@pytest.mark.parametrize(
    ("turns", "prompt_tokens", "reward"),
    [
        (1, 0, 1.0),
        (80, 50_000, 1.0),
        (81, 0, 0.995),
        (90, 0, 0.95),
        (100, 0, 0.9),
        (300, 0, 0.9),
        (1, 57_000, 0.95),
        (1, 64_000, 0.9),
        (1, 81_920, 0.9),
        (90, 57_000, 0.9),
        (100, 64_000, 0.8),
    ],
)
def test_published_numbers(turns: int, prompt_tokens: int, reward: float) -> None:
    record = replace(SOLVED, turns=turns, max_prompt_tokens=prompt_tokens)
    assert shaped_reward(record, TURNS, PROMPT) == pytest.approx(reward)
    assert shaped_reward(record, None, None) == 1.0
    assert (
        shaped_reward(replace(UNSOLVED, turns=turns, max_prompt_tokens=prompt_tokens), TURNS, PROMPT) == 0.0
    )


def test_each_penalty_can_be_left_out() -> None:
    record = replace(SOLVED, turns=100, max_prompt_tokens=57_000)
    assert shaped_reward(record, TURNS, None) == pytest.approx(0.9)
    assert shaped_reward(record, None, PROMPT) == pytest.approx(0.95)


def test_a_rollout_without_reward_stays_without() -> None:
    assert group_rewards([INFRA, SOLVED, UNSOLVED], TURNS, PROMPT) == [None, 1.0, 0.0]
    assert group_rewards([INFRA, INFRA], TURNS, PROMPT) == [None, None]


def test_a_group_that_is_all_solved_has_no_advantage() -> None:
    group = [replace(SOLVED, turns=turns) for turns in (10, 85, 90, 100)]
    rewards = group_rewards([*group, INFRA], TURNS, PROMPT)
    assert rewards == [1.0, 1.0, 1.0, 1.0, None]
    assert group_advantages(rewards) == [0.0, 0.0, 0.0, 0.0, None]


def test_a_mixed_group_prefers_the_shorter_solution() -> None:
    group = [replace(SOLVED, turns=10), replace(SOLVED, turns=100), UNSOLVED]
    rewards = group_rewards(group, TURNS, PROMPT)
    assert rewards == [1.0, pytest.approx(0.9), 0.0]
    short, long, unsolved = group_advantages(rewards) or []
    assert short is not None and long is not None and unsolved is not None
    assert short > long > 0 > unsolved


records = st.builds(
    lambda solved, turns, tokens: replace(
        SOLVED if solved else UNSOLVED, turns=turns, max_prompt_tokens=tokens
    ),
    st.booleans(),
    st.integers(0, 200),
    st.integers(0, 100_000),
)


@given(st.lists(records | st.just(INFRA), max_size=8))
def test_every_solved_rollout_stays_above_every_other(group: list[RolloutRecord]) -> None:
    shaped = group_rewards(group, TURNS, PROMPT)
    for record, reward in zip(group, shaped, strict=True):
        assert (reward is None) == (record.reward is None)
        if reward is not None:
            assert 0.8 <= reward <= 1.0 if record.reward == 1.0 else reward == 0.0
