"""Sampling from the tiny policy: seeded draws, shared prompts, conversations kept over turns."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import tiny_policy

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.policy.model import load_policy
from lightning_smith.miniature.policy.sampling import Sampler, SamplingRequest, draws, pick

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_policy.write(tmp_path_factory.mktemp("policy") / "dense")


@pytest.fixture(scope="module")
def moe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.write(tmp_path_factory.mktemp("policy") / "moe", "moe")


def request(
    prompt: tuple[int, ...], seed: int = 7, temperature: float = 1.0, max_tokens: int = 12
) -> SamplingRequest:
    return SamplingRequest(prompt, max_tokens, temperature, seed)


def full_log_probs(folder: Path, prompt: tuple[int, ...], tokens: list[int]) -> list[float]:
    """Log-probabilities of an answer from one plain forward pass of transformers over prompt and answer."""
    model, _ = load_policy(folder)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1)[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()


def test_draws_depend_on_seed_and_turn_alone():
    assert np.array_equal(draws(5, 100, 8), draws(5, 100, 8))
    assert not np.array_equal(draws(5, 100, 8), draws(6, 100, 8))
    assert not np.array_equal(draws(5, 100, 8), draws(5, 180, 8))
    assert np.array_equal(draws(5, 100, 8), draws(5, 100, 20)[:8])


def test_pick_inverts_the_cumulative_distribution():
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log().repeat(5, 1)
    uniforms = torch.tensor([0.0, 0.19, 0.21, 0.71, 0.999999], dtype=torch.float64)
    assert pick(logits, torch.ones(5, dtype=torch.float64), uniforms).tolist() == [0, 0, 1, 2, 2]
    assert pick(logits, torch.zeros(5, dtype=torch.float64), uniforms).tolist() == [1] * 5


def test_pick_has_the_distribution_of_its_temperature():
    logits = torch.tensor([1.0, 0.0, -1.0])
    uniforms = torch.linspace(0, 1, 4001, dtype=torch.float64)[:-1]
    chosen = pick(logits.repeat(4000, 1), torch.full((4000,), 0.5, dtype=torch.float64), uniforms)
    expected = torch.softmax(logits / 0.5, -1)
    assert torch.allclose(torch.bincount(chosen, minlength=3) / 4000, expected, atol=1e-3)


def test_answer_does_not_depend_on_company(folder: Path):
    """The same (messages, seed) gives the same answer alone, in a group and in a mixed batch."""
    sampler = Sampler(folder, torch.float32)
    prompts = [sampler.encode(tiny_policy.messages(path)) for path in tiny_policy.PATHS]
    alone = Sampler(folder, torch.float32).sample([request(prompts[1], seed=3)])[0]
    batch = sampler.sample([request(prompt, seed) for prompt in prompts for seed in range(4)])
    again = batch[1 * 4 + 3]
    assert again.tokens == alone.tokens
    assert again.log_probs == pytest.approx(alone.log_probs, abs=1e-5)
    group = {tuple(completion.tokens) for completion in batch[4:8]}
    assert len(group) == 4, "different seeds give different answers"


def test_log_probs_are_those_of_a_plain_forward_pass(folder: Path):
    sampler = Sampler(folder, torch.float32)
    prompts = [sampler.encode(tiny_policy.messages(path)) for path in tiny_policy.PATHS]
    for temperature in (1.0, 0.5, 0.0):
        for prompt, completion in zip(
            prompts, sampler.sample([request(p, temperature=temperature) for p in prompts]), strict=True
        ):
            expected = full_log_probs(folder, prompt, completion.tokens)
            assert completion.log_probs == pytest.approx(expected, abs=1e-5)


def test_temperature_zero_is_greedy_and_ignores_the_seed(folder: Path):
    sampler = Sampler(folder, torch.float32)
    prompt = sampler.encode(tiny_policy.messages())
    first, second = sampler.sample([request(prompt, 1, 0.0), request(prompt, 2, 0.0)])
    assert first.tokens == second.tokens
    model, _ = load_policy(folder)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *first.tokens]])).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == first.tokens


def test_answer_is_cut_at_the_context_and_at_max_tokens(folder: Path):
    sampler = Sampler(folder, torch.float32)
    prompt = (5,) * (sampler.max_positions - 3)
    completion = sampler.sample([request(prompt, max_tokens=50)])[0]
    assert len(completion.tokens) <= 3
    assert len(sampler.sample([request((5, 6, 7), max_tokens=2)])[0].tokens) <= 2


def converse(sampler: Sampler, seed: int) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[float]]:
    """Prompts of two turns of a conversation, the second answer and its log-probabilities."""
    first = sampler.encode(tiny_policy.messages())
    answer = sampler.sample([request(first, seed, max_tokens=40)])[0]
    second = first + tuple(answer.tokens) + (2, 11, 12, 13, 1, 14)
    completion = sampler.sample([request(second, seed)])[0]
    return first, second, completion.tokens, completion.log_probs


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_second_turn_from_what_was_kept_equals_one_from_scratch(kind: str, folder: Path, moe_folder: Path):
    place = folder if kind == "dense" else moe_folder
    sampler = Sampler(place, torch.float32, record_routes=kind == "moe")
    first, second, tokens, log_probs = converse(sampler, seed=4)
    assert sampler.forwarded_tokens < len(first) + len(second), "the first turn was not computed again"
    assert log_probs == pytest.approx(full_log_probs(place, second, tokens), abs=1e-5)


def test_routes_cover_all_but_the_last_token(moe_folder: Path):
    sampler = Sampler(moe_folder, torch.float32, record_routes=True)
    prompts = [sampler.encode(tiny_policy.messages(path)) for path in tiny_policy.PATHS[:2]]
    for prompt, completion in zip(prompts, sampler.sample([request(p) for p in prompts]), strict=True):
        assert completion.routes is not None and completion.routes.dtype == np.uint8
        assert completion.routes.shape == (len(prompt) + len(completion.tokens) - 1, 2, 2)
        assert completion.routes.max() < 8
        fed = torch.tensor([[*prompt, *completion.tokens[:-1]]])
        network = sampler.network
        _, experts = network.read(network.empty(1), fed, torch.ones_like(fed, dtype=torch.bool))
        assert experts is not None
        assert np.array_equal(np.sort(experts[0].numpy()), np.sort(completion.routes))


@pytest.mark.parametrize("max_tokens", [40, 3])
def test_a_continued_conversation_keeps_the_experts_of_its_answers(moe_folder: Path, max_tokens: int):
    """Also of an answer cut at its limit, and of two rollouts with equal answers from different batches."""
    sampler = Sampler(moe_folder, torch.bfloat16, record_routes=True)
    prompt, other = (sampler.encode(tiny_policy.messages(path)) for path in tiny_policy.PATHS[:2])
    for seed, company in ((1, []), (2, [request(other, 9)] * 5)):
        first = sampler.sample([request(prompt, seed, 0.0, max_tokens), *company])[0]
        end = () if first.finished else (2,)
        second = sampler.sample([request((*prompt, *first.tokens, *end, 11, 1, 12), seed)])[0]
        assert first.routes is not None and second.routes is not None
        assert np.array_equal(second.routes[: len(first.routes)], first.routes)


def test_weights_are_swapped_whole_or_not_at_all(folder: Path, tmp_path: Path):
    sampler = Sampler(folder, torch.float32)
    prompt = sampler.encode(tiny_policy.messages())
    before = sampler.sample([request(prompt)])[0]
    other = tiny_policy.write(tmp_path / "other", seed=1)
    sampler.load_weights(other)
    after = sampler.sample([request(prompt)])[0]
    assert after.tokens != before.tokens
    assert after.log_probs == pytest.approx(full_log_probs(other, prompt, after.tokens), abs=1e-5)

    damaged = other / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:5000])
    for bad in (other, tmp_path / "absent", tiny_policy.write(tmp_path / "moe", "moe")):
        with pytest.raises(UserError, match=str(bad)):
            sampler.load_weights(bad)
        assert sampler.sample([request(prompt)])[0].tokens == after.tokens


def test_dense_model_refuses_to_record_experts(folder: Path):
    with pytest.raises(UserError, match="dense model"):
        Sampler(folder, torch.float32, record_routes=True)
