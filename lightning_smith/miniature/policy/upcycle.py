"""The tiny MoE policy, made from the dense one instead of from nothing.

Attention, norms and embeddings are copied. Every expert is a random third of the dense MLP's hidden
units, with its output scaled by three: the mean over random thirds is the dense MLP, so the MoE starts
close to what the dense policy does and a hundred steps bring it back. The router keeps its random
weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file
from lightning_smith.miniature.policy.model import (
    DENSE_MLP,
    EXPERT_MLP,
    EXPERTS,
    LAYERS,
    build_model,
    load_policy,
)
from lightning_smith.miniature.policy.warm_start import MODEL_SEED, MOE_STAGES, WarmStart, publish


def upcycle(dense: Any, seed: int = MODEL_SEED) -> Any:
    """Return an MoE model (fp32) that starts from the weights of the dense model; `seed` picks units and router."""
    moe = build_model("moe", seed)
    source, target = dense.state_dict(), moe.state_dict()
    generator = torch.Generator().manual_seed(seed)
    for name, weights in target.items():
        if name in source:
            weights.copy_(source[name])
    for layer in range(LAYERS):
        mlp = f"model.layers.{layer}.mlp."
        gate, up, down = (source[f"{mlp}{part}_proj.weight"] for part in ("gate", "up", "down"))
        # Stacked experts: gate_up_proj [experts, 2 x units, hidden], down_proj [experts, hidden, units].
        gate_up = target[f"{mlp}experts.gate_up_proj"]
        expert_down = target[f"{mlp}experts.down_proj"]
        for expert in range(EXPERTS):
            units = torch.randperm(DENSE_MLP, generator=generator)[:EXPERT_MLP]
            gate_up[expert].copy_(torch.cat([gate[units], up[units]]))
            expert_down[expert].copy_(down[:, units] * (DENSE_MLP / EXPERT_MLP))
    moe.load_state_dict(target)
    return moe


def train_moe(
    dense_folder: Path, demonstrations_file: Path, out: Path, work: Path, device: str = "cpu"
) -> None:
    """The MoE warm start: upcycle a dense policy, train `MOE_STAGES`, write policy and recipe to `out`.

    The weights are stored as bfloat16, which halves them to under 4 MB; trainers load them as fp32.
    """
    dense, tokenizer = load_policy(dense_folder)
    if dense.config.model_type != "qwen3":
        raise UserError(f"{dense_folder} holds a {dense.config.model_type} model, not a dense qwen3 one")
    chain = WarmStart(
        stages=MOE_STAGES,
        start=lambda: (upcycle(dense), tokenizer),
        origin={
            "kind": "moe",
            "seed": MODEL_SEED,
            "dense_weights_sha256": sha256_file(dense_folder / "model.safetensors"),
        },
        demonstrations_file=demonstrations_file,
        work=work,
        device=device,
    )
    publish(*chain.run(), out, torch.bfloat16)
