"""Which experts each token was sent to: recording them while sampling, replaying them in the update (R3).

A mixture-of-experts layer sends a token to the `top_k` experts that its router scores highest. The rollout
engine (bf16, batches of its own) and the trainer (fp32) score slightly differently, so some tokens get
other experts in the update than they had when they were sampled, and their log-probabilities differ by far
more than rounding. "Rollout routing replay" (R3, arXiv 2510.11370) therefore sends every token of the
update to the experts that were recorded; the weights of the experts still come from the trainer's own
router, so it keeps its gradient.

Works on the routers of transformers' Qwen3-MoE: modules with `top_k`, `num_experts`, `hidden_dim` and
`weight` whose forward returns (logits, weights of the chosen experts, numbers of the chosen experts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_smith.errors import UserError


class Routers:
    """All routers of a model, in layer order; empty (false) for a dense model.

    Their forward is replaced once. Outside `recording` and `replaying` they compute what they always did.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules: list[Any] = [
            module for module in model.modules() if type(module).__name__.endswith("TopKRouter")
        ]
        config: Any = model.config
        expected = _count_moe_layers(config)
        if len(self._modules) != expected:
            raise UserError(
                f"the model has {len(self._modules)} routers for {expected} mixture-of-experts layers, so recorded "
                "experts cannot be matched to layers: use the transformers version that envs/mini locks"
            )
        self.layers = expected
        self.top_k = int(self._modules[0].top_k) if expected else 0
        self.experts = int(self._modules[0].num_experts) if expected else 0
        self._recorded: list[Tensor] | None = None
        self._replayed: Tensor | None = None
        self._calls = 0
        for layer, module in enumerate(self._modules):
            module.forward = self._wrap(layer, module)

    def __bool__(self) -> bool:
        return self.layers > 0

    @contextmanager
    def recording(self) -> Iterator[Callable[[int, int], Tensor]]:
        """Record the chosen experts of every forward pass inside the block.

        Yields `take(batch, tokens)`, to be called after each forward pass over `batch` x `tokens` tokens:
        it returns uint8 [batch, tokens, layers, top_k].
        """
        self._recorded = []

        def take(batch: int, tokens: int) -> Tensor:
            assert self._recorded is not None and len(self._recorded) == self.layers
            stacked = torch.stack(
                [chosen.view(batch, tokens, self.top_k) for chosen in self._recorded], dim=2
            )
            self._recorded.clear()
            return stacked.to(torch.uint8)

        try:
            yield take
        finally:
            self._recorded = None

    @contextmanager
    def replaying(self, routes: Tensor) -> Iterator[None]:
        """Send the tokens of exactly one forward pass to `routes`, integer [batch, tokens, layers, top_k].

        Raises RuntimeError if the block did not pass each router once: replay that silently does nothing is
        the known way for this to go wrong.
        """
        if tuple(routes.shape[2:]) != (self.layers, self.top_k):
            raise ValueError(
                f"routes of shape {tuple(routes.shape)}, expected [.., .., {self.layers}, {self.top_k}]"
            )
        self._replayed, self._calls = routes.long(), 0
        try:
            yield
        finally:
            self._replayed = None
        if self._calls != self.layers:
            raise RuntimeError(f"recorded experts were replayed in {self._calls} of {self.layers} layers")

    def _wrap(self, layer: int, module: Any) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
        original = module.forward

        def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            if self._replayed is not None:
                self._calls += 1
                return _route_to(module, hidden, self._replayed[:, :, layer].reshape(-1, self.top_k))
            result = original(hidden)
            if self._recorded is not None:
                self._recorded.append(result[2])
            return result

        return forward


def _route_to(module: Any, hidden: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The router's result with the experts given; their weights are the router's own."""
    logits = nn.functional.linear(hidden.reshape(-1, module.hidden_dim), module.weight)
    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, chosen)
    if module.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights.to(logits.dtype), chosen


def _count_moe_layers(config: Any) -> int:
    """Layers with experts, as the model's own constructor decides; 0 for a dense configuration."""
    if not getattr(config, "num_experts", 0):
        return 0
    return sum(
        layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0
        for layer in range(config.num_hidden_layers)
    )
