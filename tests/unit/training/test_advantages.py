"""Group statistics of GRPO over valid rollouts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.training.advantages import group_advantages, step_advantages

NONE6 = [None] * 6


def test_two_valid_rollouts_of_eight():
    values = group_advantages([0.0, 1.0, *NONE6])
    assert values is not None and values[2:] == NONE6
    assert values[:2] == pytest.approx([-0.7071, 0.7071], abs=1e-3)


def test_six_valid_rollouts_of_eight():
    values = group_advantages([1, 0, 0, 1, 1, 0, None, None])
    assert values is not None
    assert values[:6] == pytest.approx([0.9129, -0.9129, -0.9129, 0.9129, 0.9129, -0.9129], abs=1e-3)
    assert values[6:] == [None, None]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_uniform_group_has_exactly_no_advantage(reward: float):
    assert group_advantages([reward] * 8) == [0.0] * 8


@pytest.mark.parametrize("rewards", [[1.0, None, None], [None] * 8, [math.nan, 1.0]])
def test_fewer_than_two_valid_rollouts_drop_the_group(rewards: list[float | None]):
    assert group_advantages(rewards) is None


def test_a_reward_that_is_no_number_is_masked():
    values = group_advantages([0.0, 1.0, math.nan, 0.0, 0.0, 0.0, 0.0, 0.0])
    alone = group_advantages([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert values is not None and alone is not None
    assert values[2] is None
    assert values[:2] + values[3:] == alone


def test_counts_of_a_step():
    step = step_advantages(
        {"mixed": [0.0, 1.0, None], "solved": [1.0, 1.0, 1.0], "one": [1.0, None, None], "none": [None] * 3}
    )
    assert (step.mixed, step.uniform, step.dropped, step.masked_rollouts) == (1, 1, 2, 6)
    assert set(step.values) == {"mixed", "solved"}


rewards = st.one_of(st.none(), st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, math.nan, math.inf]))


@given(st.lists(rewards, max_size=12))
def test_every_advantage_is_finite_and_valid_ones_sum_to_zero(group: list[float | None]):
    values = group_advantages(group)
    if values is None:
        return
    numbers = [value for value in values if value is not None]
    assert all(math.isfinite(value) for value in numbers)
    assert math.fsum(numbers) == pytest.approx(0.0, abs=1e-3)
    assert [value is None for value in values] == [r is None or not math.isfinite(r) for r in group]
