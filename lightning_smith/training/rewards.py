"""What a rollout is worth to the trainer: its reward, less what a long solution costs.

Training only. Records, logs, probe and evaluation hold the raw reward, 1 or 0.

    r = 1 - p(turns) - p(longest prompt)    if the rollout is solved, else its raw reward
    p(x) = most * clip((x - start) / (end - start), 0, 1)

Formula of Agent Lightning's examples/swe_smith/agents/smith_agent.py (`length_penalized_reward`,
`prompt_length_penalty`), values of its job-template-openai.yaml: turns 80 to 100 at most 0.1, tokens of the longest
prompt 50,000 to 64,000 at most 0.1.

One thing differs: a group whose raw rewards are all equal keeps them. Dividing by a group's deviation turns any
difference into advantages near 1, so rollouts that are all solved would be trained on their length alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_smith.config.recipes import LengthPenalty
from lightning_smith.contracts.outcome import RolloutRecord


def shaped_reward(
    record: RolloutRecord, turns: LengthPenalty | None, prompt: LengthPenalty | None
) -> float | None:
    """Return the reward of one rollout with the penalties that are given; None if it has none."""
    if record.reward is None or record.reward < 1.0:
        return record.reward
    penalty = turns(record.turns) if turns else 0.0
    return record.reward - penalty - (prompt(record.max_prompt_tokens) if prompt else 0.0)


def group_rewards(
    records: Sequence[RolloutRecord], turns: LengthPenalty | None, prompt: LengthPenalty | None
) -> list[float | None]:
    """Return rewards of a task's rollouts; the raw ones where those do not differ."""
    raw = [record.reward for record in records]
    if len({reward for reward in raw if reward is not None}) < 2:
        return raw
    return [shaped_reward(record, turns, prompt) for record in records]
