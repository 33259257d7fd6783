"""The learner's numbers: log-probabilities, loss, gradient, replay, and going on after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import whole_settings

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_policy

from lightning_smith.config.recipes import parse_recipe
from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.gateway.dispatch import Finished, RolloutRequest
from lightning_smith.miniature.policy.model import load_policy
from lightning_smith.miniature.policy.network import Network
from lightning_smith.miniature.policy.sampling import Sampler, SamplingRequest
from lightning_smith.miniature.policy.server import encode_routes
from lightning_smith.miniature.policy.trainer import (
    Gap,
    GrpoLearner,
    clipped_tokens,
    policy_loss,
    row_log_probs,
)
from lightning_smith.training.segments import Segment, TrainedRollout, run_segment
from lightning_smith.training.trajectories import RouteShape, Row, build_trajectory

pytestmark = pytest.mark.torch

SETTINGS = {
    **whole_settings.RECIPE,
    "policy": "dense",
    "seed": 1,
    "checkpoints": [3],
    "evaluate": [0],
    "tasks_per_step": 2,
    "rollouts_per_task": 4,
    "learning_rate": 1e-3,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "loss": "per_rollout_mean",
    "router_replay": False,
    "async_rollouts": 0,
    "save_every": 3,
}


def recipe(**changes: Any):
    return parse_recipe("test", {**SETTINGS, **changes})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.write(tmp_path_factory.mktemp("policy") / "dense")


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.write(tmp_path_factory.mktemp("policy") / "moe", "moe")


def row(*parts: tuple[str, list[int]], old: float = -2.0) -> Row:
    """A row from ("given", tokens) and ("sampled", tokens) parts."""
    tokens = [token for _, part in parts for token in part]
    sampled = [kind == "sampled" for kind, part in parts for _ in part]
    return Row(tuple(tokens), tuple(sampled), tuple(old if s else 0.0 for s in sampled))


ROWS = [
    row(("given", [5, 6, 7]), ("sampled", [8, 9, 2]), ("given", [10, 11]), ("sampled", [12, 2])),
    row(("given", [5, 6, 7]), ("sampled", [8, 9, 2]), ("given", [10, 11]), ("sampled", [13, 14, 2])),
    row(("given", [5, 6, 7]), ("sampled", [20, 2]), ("given", [10, 11, 30]), ("sampled", [2])),
    row(("given", [40, 41]), ("sampled", [42])),
]


def plain_log_probs(model: Any, one: Row) -> Any:
    """From one forward pass over the whole row."""
    logits = model(input_ids=torch.tensor([one.tokens])).logits[0, :-1].float()
    everything = torch.log_softmax(logits, -1).gather(-1, torch.tensor(one.tokens[1:])[:, None])[:, 0]
    return everything[torch.tensor(one.sampled[1:])]


def test_shared_beginnings_give_the_log_probs_of_whole_rows(dense: Path):
    model, _ = load_policy(dense)
    for found, one in zip(row_log_probs(Network.load(dense), ROWS), ROWS, strict=True):
        assert torch.allclose(found, plain_log_probs(model, one), atol=1e-5)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_gradient_through_shared_beginnings_is_that_of_whole_rows(dense: Path, moe: Path, kind: str):
    folder = dense if kind == "dense" else moe
    network, (model, _) = Network.load(folder, frozen=False), load_policy(folder)
    weights = [torch.linspace(0.5, 2.0, one.sampled_tokens) for one in ROWS]

    def backward(log_probs: list[Any]) -> None:
        sum((lp * weight).sum() for lp, weight in zip(log_probs, weights, strict=True)).backward()

    backward(row_log_probs(network, ROWS))
    backward([plain_log_probs(model, one) for one in ROWS])
    theirs = dict(model.named_parameters())
    shared = [name for name in network.weights if name in theirs]
    assert len(shared) > len(network.weights) / 2 or kind == "moe"  # transformers holds experts stacked
    for name in shared:
        assert torch.allclose(network.weights[name].grad, theirs[name].grad, atol=2e-5, rtol=1e-3), name


def test_loss_and_gradient_by_hand():
    """Tokens inside the clip, above it (A > 0), below it (A < 0) and far above it (A < 0)."""
    ratios = torch.tensor([1.1, 1.5, 0.5, 9.0])
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4])
    log_probs = ratios.log().requires_grad_()
    loss = policy_loss(log_probs, torch.zeros(4), advantage, weight, recipe())
    clipped = clipped_tokens(log_probs, torch.zeros(4), advantage, recipe())
    assert clipped.tolist() == [False, True, True, False], "the bound of 3 is no clip"
    assert loss.item() == pytest.approx(-1.1 * 0.1 - 1.28 * 0.2 + 0.8 * 0.3 + 3.0 * 0.4, abs=1e-6)
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.1 * 0.1, 0.0, 0.0, 0.0], abs=1e-6)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    log_probs = torch.tensor([1.1, 1.5, 0.5]).log().requires_grad_()
    advantage, weight = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0.1, 0.2, 0.3])
    settings = recipe(loss="cispo_per_rollout_mean", clip_low=10.0, clip_high=0.2)
    policy_loss(log_probs, torch.zeros(3), advantage, weight, settings).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.1 * 0.1, -1.2 * 0.2, 0.5 * 0.3], abs=1e-6)
    assert clipped_tokens(log_probs, torch.zeros(3), advantage, settings).tolist() == [False, True, False]


def test_gap_by_hand():
    gap = Gap.of(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.5, -2.9]))
    assert (gap.largest, gap.mean) == pytest.approx((0.5, 0.2), abs=1e-6)
    k3 = ((0.0) + (torch.tensor(0.5).exp() - 1.5).item() + (torch.tensor(-0.1).exp() - 0.9).item()) / 3
    assert gap.k3 == pytest.approx(k3, abs=1e-6)


def test_one_update_is_the_adamw_step_of_the_documented_loss(dense: Path, tmp_path: Path):
    unclipped = recipe()
    object.__setattr__(unclipped, "gradient_clip", 1e9)
    learner = GrpoLearner(dense, unclipped, tmp_path / "pushed", lambda folder, step: None)
    reference, _ = load_policy(dense)
    with torch.no_grad():
        rows = [
            Row(one.tokens, one.sampled, _fill(one, plain_log_probs(reference, one).tolist())) for one in ROWS
        ]
    rollouts = [
        TrainedRollout((rows[0],), 1.5),
        TrainedRollout((rows[1], rows[3]), -0.5),
        TrainedRollout((rows[2],), 0.0),
    ]
    loss = torch.zeros(())
    for rollout in rollouts:
        count = sum(one.sampled_tokens for one in rollout.rows)
        for one in rollout.rows:
            log_probs = plain_log_probs(reference, one)
            ratio = (log_probs - log_probs.detach()).exp()
            loss = loss - (rollout.advantage * ratio).sum() / (count * 4)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    loss.backward()
    optimizer.step()

    metrics = learner.update(rollouts)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert metrics["clip_fraction"] == 0.0 and metrics["trained_tokens"] == 5 + 6 + 1
    assert metrics["gap_max"] is not None and metrics["gap_max"] < 1e-5
    for name, b in reference.named_parameters():
        close = (
            learner.network.weights[name] - b
        ).abs() < 2e-5  # Adam divides by the gradient's size: tiny ones may go either way
        assert close.double().mean() > 0.99, name


@pytest.mark.parametrize("loss", ["per_rollout_mean", "cispo_per_rollout_mean"])
def test_a_second_update_starts_from_the_first_and_is_clipped(dense: Path, tmp_path: Path, loss: str):
    """Rollouts are dealt in turn, the first update's ratios are 1, and the weights of both share the step's rows."""
    changes = {
        "loss": loss,
        "clip_low": 1e-4,
        "clip_high": 1e-4,
        "learning_rate": 1e-2,
        "rollouts_per_task": 2,
    }
    twice = recipe(**changes, tasks_per_update=1, updates_per_step=2)
    model, _ = load_policy(dense)
    with torch.no_grad():
        rows = [
            Row(one.tokens, one.sampled, _fill(one, plain_log_probs(model, one).tolist())) for one in ROWS
        ]
    rollouts = [
        TrainedRollout((one,), advantage) for one, advantage in zip(rows, (1, -1, 1, -1), strict=True)
    ]
    learner = GrpoLearner(dense, twice, tmp_path / "twice", lambda folder, step: None)
    metrics = learner.update(rollouts)
    assert metrics["updates"] == 2 and metrics["trained_tokens"] == sum(one.sampled_tokens for one in ROWS)
    assert metrics["clip_fraction"] is not None and 0 < metrics["clip_fraction"] < 1
    assert metrics["gap_max"] is not None and metrics["gap_max"] < 1e-4, "the gap is that of the first update"

    by_hand = GrpoLearner(dense, recipe(**changes), tmp_path / "by_hand", lambda folder, step: None)
    for part in (rollouts[::2], rollouts[1::2]):
        assert by_hand._update_once(part, row_count=4) is not None
    for name, value in by_hand.network.weights.items():
        assert torch.equal(value, learner.network.weights[name]), name


def _fill(one: Row, sampled_log_probs: list[float]) -> tuple[float, ...]:
    values = iter(sampled_log_probs)
    return tuple(next(values) if sampled else 0.0 for sampled in one.sampled)


def test_uniform_groups_leave_the_weights_alone(dense: Path, tmp_path: Path):
    learner = GrpoLearner(dense, recipe(), tmp_path / "pushed", lambda folder, step: None)
    before = {name: value.clone() for name, value in learner.network.weights.items()}
    assert learner.update([TrainedRollout((ROWS[0],), 0.0)])["grad_norm"] is None
    assert all(torch.equal(value, before[name]) for name, value in learner.network.weights.items())


# ------------------------------------------------------------------- against the sampler


def roll_out(sampler: Sampler, count: int, seed: int = 0) -> list[list[dict[str, Any]]]:
    """Two-turn conversations as the gateway records them: events of each rollout."""
    prompt = sampler.encode(tiny_policy.messages())
    first = sampler.sample([SamplingRequest(prompt, 12, 1.0, seed + k) for k in range(count)])
    prompts = [prompt + tuple(answer.tokens) + (2, 11, 1, 12, 13) for answer in first]
    second = sampler.sample([SamplingRequest(p, 12, 1.0, seed + k) for k, p in enumerate(prompts)])
    return [
        [event(prompt, one), event(then, two)] for one, then, two in zip(first, prompts, second, strict=True)
    ]


def event(prompt: Sequence[int], answer: Any) -> dict[str, Any]:
    data = {
        "prompt_token_ids": list(prompt),
        "response_token_ids": answer.tokens,
        "response_log_probs": answer.log_probs,
        "routed_experts": encode_routes(answer.routes) if answer.routes is not None else None,
    }
    return {"event_type": "model_request", "data": data}


def test_trainer_and_sampler_agree_in_fp32(dense: Path):
    sampler = Sampler(dense, torch.float32)
    rows = [build_trajectory(events, name="x", routes=None).rows[0] for events in roll_out(sampler, 6)]
    found = torch.cat(row_log_probs(sampler.network, rows)).detach()
    recorded = torch.tensor(
        [lp for one in rows for lp, s in zip(one.log_probs, one.sampled, strict=True) if s]
    )
    assert Gap.of(found, recorded).largest < 1e-4


def test_replay_closes_the_gap_of_a_bf16_engine(moe: Path):
    sampler, engine = Sampler(moe, torch.float32), Sampler(moe, torch.bfloat16, record_routes=True)
    shape = RouteShape(2, 2, 8)
    rows = [build_trajectory(e, name="x", routes=shape).rows[0] for e in roll_out(engine, 32)]
    recorded = torch.tensor(
        [lp for one in rows for lp, s in zip(one.log_probs, one.sampled, strict=True) if s]
    )
    with torch.no_grad():
        anew = Gap.of(torch.cat(row_log_probs(sampler.network, rows)), recorded)
        replayed = Gap.of(torch.cat(row_log_probs(sampler.network, rows, replay=True)), recorded)
    assert replayed.largest < anew.largest / 2
    assert replayed.k3 < anew.k3 / 4


def test_replayed_rows_equal_one_pass_with_the_same_experts(moe: Path):
    engine = Sampler(moe, torch.float32, record_routes=True)
    rows = [build_trajectory(e, name="x", routes=RouteShape(2, 2, 8)).rows[0] for e in roll_out(engine, 3)]
    found = row_log_probs(engine.network, rows, replay=True)
    for one, log_probs in zip(rows, found, strict=True):
        assert one.routes is not None
        routes = torch.frombuffer(bytearray(one.routes.data), dtype=torch.uint8).view(1, -1, 2, 2)
        fed, network = torch.tensor([one.tokens[:-1]]), engine.network
        hidden, _ = network.read(network.empty(1), fed, torch.ones_like(fed, dtype=torch.bool), routes)
        logits = network.logits(hidden[0])
        everything = torch.log_softmax(logits, -1).gather(-1, torch.tensor(one.tokens[1:])[:, None])[:, 0]
        assert torch.allclose(log_probs, everything[torch.tensor(one.sampled[1:])], atol=1e-5)


def test_replay_needs_a_mixture_of_experts(dense: Path, tmp_path: Path):
    with pytest.raises(UserError, match="dense model"):
        GrpoLearner(dense, recipe(router_replay=True), tmp_path, lambda folder, step: None)


def test_moe_update_reports_the_gap_with_and_without_replay(moe: Path, tmp_path: Path):
    engine = Sampler(moe, torch.bfloat16, record_routes=True)
    learner = GrpoLearner(moe, recipe(router_replay=True), tmp_path / "pushed", lambda folder, step: None)
    rollouts = [
        TrainedRollout(build_trajectory(e, name="x", routes=learner.routes).rows, 1.0 if k % 2 else -1.0)
        for k, e in enumerate(roll_out(engine, 8))
    ]
    metrics = learner.update(rollouts)
    assert metrics["gap_k3_replay"] is not None and metrics["gap_k3"] is not None
    assert metrics["gap_k3_replay"] < metrics["gap_k3"]


# ---------------------------------------------------------------------------- a killed run


class KilledError(Exception):
    """Stands for SIGKILL."""


class SamplerDispatch:
    """Rollouts by a sampler in this process; the reward depends on what was sampled."""

    def __init__(self, start: Path, lives: int = 10**9) -> None:
        self.sampler, self.lives = Sampler(start, torch.float32), lives

    def push(self, folder: Path, version: int) -> None:
        self.sampler.load_weights(folder)

    def __call__(self, requests: Sequence[RolloutRequest]) -> Iterator[Finished]:
        for request in requests:
            if self.lives == 0:
                raise KilledError
            self.lives -= 1
            (events,) = roll_out(self.sampler, 1, seed=request.seed)
            reward = float(sum(events[0]["data"]["response_token_ids"]) % 2)
            record = RolloutRecord(
                request.instance_id, request.sample, Outcome.SOLVED if reward else Outcome.UNSOLVED, reward,
                bool(reward), 2, 10, 5, 0.1, "policy", "r", "d", request.seed,
            )  # fmt: skip
            yield Finished(request, record, events)


def train(root: Path, start: Path, lives: int = 10**9) -> dict[str, Any]:
    dispatch = SamplerDispatch(start, lives)
    learner = GrpoLearner(start, recipe(), root / "pushed", dispatch.push)
    run_segment(Segment("test", recipe(), "abc", ("a", "b", "c"), root), 3, learner, dispatch)
    return learner.network.weights


@pytest.mark.parametrize("lives", [3, 8, 19])
def test_killed_between_saves_and_resumed_gives_the_same_weights(dense: Path, tmp_path: Path, lives: int):
    """Killed in step 1, after step 1 and in step 3; the only checkpoint is at step 3."""
    undisturbed = train(tmp_path / "undisturbed", dense)
    with pytest.raises(KilledError):
        train(tmp_path / "killed", dense, lives)
    resumed = train(tmp_path / "killed", dense)
    for name, value in undisturbed.items():
        assert torch.equal(value, resumed[name]), name
    start = Network.load(dense).weights
    assert any(not torch.equal(value, start[name]) for name, value in undisturbed.items())
