"""Our advantages, losses and rows against the functions of verl 0.8.0 and Agent Lightning 1.0.2 themselves.

Numbers are float64 and agree to 1e-14. Where the two differ, it is on purpose, and a test below says how. The functions
of the length penalties are in no package but in Agent Lightning's examples: test_rewards.py has the published numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import whole_settings

pytest.importorskip("verl", reason="needs envs/parity")

import numpy as np
import torch
from agentlightning.verl import per_rollout_loss, rollout_adapter, rollout_level_advantage
from agentlightning.verl.agl_rollout_manager import CompletedRollout, Triplet
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.workers.config import ActorConfig

from lightning_smith.config.recipes import LengthPenalty, parse_recipe
from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.miniature.policy.server import encode_routes
from lightning_smith.miniature.policy.trainer import clipped_tokens, policy_loss
from lightning_smith.training.advantages import group_advantages, step_advantages
from lightning_smith.training.rewards import group_rewards
from lightning_smith.training.trajectories import RouteShape, build_trajectory

pytestmark = pytest.mark.verl

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-14}
LOSSES = {
    "per_rollout_mean": per_rollout_loss.compute_policy_loss_per_rollout_mean,
    "cispo_per_rollout_mean": per_rollout_loss.compute_policy_loss_cispo_per_rollout_mean,
}
SETTINGS = {
    **whole_settings.RECIPE,
    "policy": "dense",
    "seed": 1,
    "checkpoints": [1],
    "evaluate": [0],
    "tasks_per_step": 4,
    "rollouts_per_task": 8,
    "learning_rate": 1e-6,
    "router_replay": False,
    "async_rollouts": 0,
    "save_every": 1,
}


def upstream_advantages(
    groups: dict[str, list[float]], rows: int, width: int = 5
) -> tuple[Any, list[list[float]]]:
    """Batch after upstream's advantages, `rows` rows a rollout, and one advantage a rollout, group by group."""
    names = [(task, sample) for task, rewards in groups.items() for sample in range(len(rewards))]
    count = len(names) * rows
    mask = torch.zeros(count, width, dtype=torch.float64)
    rewards = torch.zeros(count, width, dtype=torch.float64)
    generator = random.Random(f"{groups} {rows}")
    for row in range(count):
        task, sample = names[row // rows]
        length = generator.randint(1, width)
        mask[row, :length] = 1
        rewards[row, length - 1] = groups[task][sample]
    batch = DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": rewards},
        non_tensors={
            "uid": np.array([names[row // rows][0] for row in range(count)], dtype=object),
            "rollout_id_list": np.array([f"{names[row // rows]}" for row in range(count)], dtype=object),
        },
    )
    batch, _ = rollout_level_advantage.compute_rollout_level_advantage(
        batch, adv_estimator=AdvantageEstimator.GRPO, gamma=1.0, lam=1.0, num_repeat=8
    )
    flat = iter(
        batch.batch["advantages"][::rows].abs().amax(-1) * batch.batch["advantages"][::rows, 0].sign()
    )
    return batch, [[float(next(flat)) for _ in rewards] for rewards in groups.values()]


def draw_groups(seed: int) -> dict[str, list[float]]:
    """Four groups of eight rewards as the length penalties leave them, the last one all unsolved."""
    draw = random.Random(seed)
    groups = {
        f"task-{task}": [draw.choice([0.0, 1.0, 1 - draw.random() / 5]) for _ in range(8)]
        for task in range(3)
    }
    return {**groups, "task-3": [0.0] * 8}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_whole_groups_agree(seed: int, rows: int) -> None:
    groups = draw_groups(seed)
    _, theirs = upstream_advantages(groups, rows)
    ours = step_advantages(groups)
    assert ours.dropped == ours.masked_rollouts == 0
    for (task, values), expected in zip(ours.values.items(), theirs, strict=True):
        assert values == pytest.approx(expected, rel=0, abs=1e-14), task


@pytest.mark.parametrize(
    ("loss", "low", "high"), [("per_rollout_mean", 0.2, 0.28), ("cispo_per_rollout_mean", 10.0, 0.2)]
)
@pytest.mark.parametrize("seed", range(5))
def test_loss_gradient_and_clip_fraction_agree(loss: str, low: float, high: float, seed: int) -> None:
    """Of a whole step: three rows a rollout, ratios from 1/20 to 20, all with an advantage of their rollout."""
    batch, _ = upstream_advantages(draw_groups(seed), rows=3)
    mask, ids = batch.batch["response_mask"], batch.non_tensor_batch["rollout_id_list"]
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(mask.shape, generator=generator, dtype=torch.float64)
    new = (old + 6 * torch.rand(mask.shape, generator=generator, dtype=torch.float64) - 3).requires_grad_()
    normalised = per_rollout_loss.normalize_advantages_by_rollout(
        batch.batch["advantages"], mask, ids, num_trained_rows=len(mask)
    )
    config = ActorConfig(
        strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=low, clip_ratio_high=high
    )
    theirs, metrics = LOSSES[loss](old, new, normalised, mask, config=config)
    theirs.backward()
    gradient, kept = new.grad, mask.bool()
    assert gradient is not None

    tokens = {name: float(mask[ids == name].sum()) for name in set(ids)}
    weight = torch.tensor([1 / (tokens[name] * len(mask)) for name in ids], dtype=torch.float64)
    flat = new.detach()[kept].requires_grad_()
    recipe = parse_recipe("parity", {**SETTINGS, "loss": loss, "clip_low": low, "clip_high": high})
    advantage = batch.batch["advantages"][kept]
    ours = policy_loss(flat, old[kept], advantage, weight[:, None].expand_as(mask)[kept], recipe)
    ours.backward()
    assert flat.grad is not None
    torch.testing.assert_close(ours, theirs, **EXACT)
    torch.testing.assert_close(flat.grad, gradient[kept], **EXACT)
    fraction = clipped_tokens(flat.detach(), old[kept], advantage, recipe).double().mean()
    assert fraction > 0.1 and float(fraction) == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)


# ---------------------------------------------------------------------------------- trajectories

SHAPE = RouteShape(layers=2, top_k=2, experts=8)


def draw_turns(draw: random.Random) -> list[dict[str, Any]]:
    """Model requests of a rollout; about a third of the prompts do not continue what was before."""
    turns: list[dict[str, Any]] = []
    context: list[int] = []
    for _ in range(draw.randint(1, 5)):
        broken = bool(context) and draw.random() < 0.3
        start = context[:-1] if broken else context
        prompt = start + [draw.randint(3, 90) for _ in range(draw.randint(1, 6))]
        answer = [draw.randint(3, 90) for _ in range(draw.randint(1, 4))]
        context = prompt + answer
        experts = np.array(draw.choices(range(1, 8), k=len(context) * 4), dtype=np.uint8).reshape(-1, 2, 2)
        turns.append(
            {
                "prompt_token_ids": prompt,
                "response_token_ids": answer,
                "response_log_probs": [-draw.random() for _ in answer],
                "routed_experts": encode_routes(torch.from_numpy(experts)),
            }
        )
    return turns


def upstream_rows(rollouts: Sequence[list[dict[str, Any]]], reward: float = 1.0) -> Any:
    """Agent Lightning's training batch of these rollouts."""
    adapter = rollout_adapter.RolloutAdapter(
        max_prompt_length=64,
        max_response_length=64,
        device=torch.device("cpu"),
        pad_token_id=0,
        trace_aggregator_level="trajectory",
        require_routed_experts=True,
    )
    completed = [
        CompletedRollout(
            rollout_id=f"r{number}",
            data_id="task",
            step=0,
            sample_idx_in_step=number,
            enqueue_time=0.0,
            final_reward=reward,
            triplets=[
                Triplet(
                    prompt={"token_ids": list(turn["prompt_token_ids"])},
                    response={
                        "token_ids": list(turn["response_token_ids"]),
                        "log_probs": list(turn["response_log_probs"]),
                        "routed_experts": turn["routed_experts"],
                    },
                )
                for turn in turns
            ],
        )
        for number, turns in enumerate(rollouts)
    ]
    batch, _ = adapter.get_train_data_batch(completed)
    return batch


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_trajectories_agree(seed: int) -> None:
    """Tokens, which of them were sampled, their log-probabilities and the experts of what is fed."""
    draw = random.Random(seed)
    rollouts = [draw_turns(draw) for _ in range(12)]
    theirs = upstream_rows(rollouts)
    row = 0
    for number, turns in enumerate(rollouts):
        events = [{"event_type": "model_request", "data": turn} for turn in turns]
        trajectory = build_trajectory(events, name=f"r{number}", routes=SHAPE)
        assert not trajectory.faults
        for ours in trajectory.rows:
            assert theirs.non_tensor_batch["rollout_id_list"][row] == f"r{number}"
            there = theirs.batch["attention_mask"][row].bool()
            assert theirs.batch["input_ids"][row][there].tolist() == list(ours.tokens)
            start = int(there[:64].sum())
            length = len(ours.tokens) - start
            assert theirs.batch["response_mask"][row][:length].tolist() == [
                int(s) for s in ours.sampled[start:]
            ]
            assert not any(ours.sampled[:start])
            log_probs = torch.tensor(ours.log_probs[start:], dtype=torch.float32)
            assert torch.equal(theirs.batch["rollout_log_probs"][row][:length], log_probs)
            assert ours.routes is not None and ours.routes.positions == len(ours.tokens) - 1
            experts = theirs.batch["routed_experts"][row][there][:-1]
            assert experts.numpy().tobytes() == ours.routes.data
            row += 1
    assert row == len(theirs) > len(rollouts), "some rollouts are several rows"


# ------------------------------------------------------------------- where we differ on purpose


def record(sample: int, turns: int, outcome: Outcome = Outcome.SOLVED) -> RolloutRecord:
    reward = None if outcome is Outcome.INFRA else float(outcome is Outcome.SOLVED)
    return RolloutRecord("a", sample, outcome, reward, bool(reward), turns, 10, 5, 0.1, "m", "r", "d", sample)


def test_a_group_that_is_all_solved_is_not_trained_on_its_length() -> None:
    """Upstream penalises length in every group, and dividing by the deviation makes of it advantages near 1."""
    penalty = LengthPenalty(80, 100, 0.1)
    records = [record(sample, turns) for sample, turns in enumerate((10, 20, 30, 90))]
    _, ((*shorter, longest),) = upstream_advantages(
        {"a": [1 - penalty(one.turns) for one in records]}, rows=1
    )
    assert longest < -1.4 and min(shorter) > 0.4
    assert group_advantages(group_rewards(records, penalty, None)) == [0.0] * 4


def test_a_rollout_without_a_verdict_is_masked_and_a_group_of_one_dropped() -> None:
    """Upstream takes 0 for such a reward (`reward_fillna_value`), and a lone rollout's reward for its advantage."""
    _, (filled,) = upstream_advantages({"a": [1.0, 1.0, 0.0, 0.0]}, rows=1)
    assert filled[2:] == pytest.approx([-0.866, -0.866], abs=1e-3)
    assert group_advantages([1.0, 1.0, None, None]) == [0.0, 0.0, None, None]
    _, (lone,) = upstream_advantages({"a": [1.0]}, rows=1)
    assert lone == pytest.approx([1.0], abs=1e-5)
    assert group_advantages([1.0, None, None, None]) is None


def test_old_log_probabilities_are_the_engines_which_upstream_calls_bypass() -> None:
    """The published recipes have it off: upstream computes them again with the trainer's weights."""
    draw = random.Random(1)
    turns = draw_turns(draw)
    batch = upstream_rows([turns])
    config = OmegaConf.create({"bypass_mode": True})
    apply_bypass_mode(batch, config, OmegaConf.create({"loss_mode": "per_rollout_mean"}))
    events = [{"event_type": "model_request", "data": turn} for turn in turns]
    rows = build_trajectory(events, name="r", routes=None).rows
    for row, ours in enumerate(rows):
        sampled = [
            value for value, is_sampled in zip(ours.log_probs, ours.sampled, strict=True) if is_sampled
        ]
        theirs = batch.batch["old_log_probs"][row][batch.batch["response_mask"][row].bool()]
        assert torch.equal(theirs, torch.tensor(sampled, dtype=torch.float32))


def test_shaped_rewards_are_not_rounded() -> None:
    """Agent Lightning 1.0.2 keeps scores in bfloat16; 1.0.3 does not."""
    batch = upstream_rows([draw_turns(random.Random(2))], reward=0.95)
    assert float(batch.batch["token_level_scores"].sum(-1)[0]) == 0.94921875
    assert (
        group_rewards([record(0, 90), record(1, 1, Outcome.UNSOLVED)], LengthPenalty(80, 100, 0.1), None)[0]
        == 0.95
    )
