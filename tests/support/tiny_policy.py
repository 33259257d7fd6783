"""Policies small enough for tests: a tokenizer of the conversation's language, models of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from lightning_smith.miniature.policy.conversation import (
    SYSTEM_PROMPT,
    TURN_END,
    bash_block,
    observation,
    problem_statement,
    view_command,
)
from lightning_smith.miniature.policy.model import save_policy, train_tokenizer

PATHS = ("boltons/mathutils.py", "toolz/itertoolz.py", "src/parse/core.py", "lib/addict/addict.py")


def texts() -> list[str]:
    """Sentences that the tokenizer learns from."""
    statements = [problem_statement("clamp", path, "cmp", 40, 46) for path in PATHS]
    commands = [bash_block(view_command(path, 40, 46)) for path in PATHS]
    return [
        SYSTEM_PROMPT,
        *statements,
        *commands,
        observation(0, "40:if low <= value:\n41:    return value\n"),
    ] * 3


def messages(path: str = PATHS[0]) -> list[dict[str, str]]:
    """The opening of a conversation."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": problem_statement("clamp", path, "cmp", 40, 46)},
    ]


def build(kind: str, vocabulary: int, *, seed: int = 0, max_positions: int = 256) -> Any:
    """A two-layer Qwen3 or Qwen3-MoE (8 experts, 2 a token) whose weights are large enough to differ."""
    torch.manual_seed(seed)
    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "dense":
        return Qwen3ForCausalLM(Qwen3Config(**shared)).float().eval()
    config = Qwen3MoeConfig(
        moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, **shared
    )
    return Qwen3MoeForCausalLM(config).float().eval()


def write(folder: Path, kind: str = "dense", *, seed: int = 0, max_positions: int = 256) -> Path:
    """Save such a policy as a Hugging Face folder."""
    tokenizer = train_tokenizer(texts())
    assert tokenizer.convert_tokens_to_ids(TURN_END) == 2
    save_policy(build(kind, len(tokenizer), seed=seed, max_positions=max_positions), tokenizer, folder)
    return folder
