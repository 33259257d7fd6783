"""Sampling from the miniature's policy: seeded, equal prompts computed once, keys and values kept over turns.

Layout of a batch: every row's tokens stand in one growing cache with gaps; `mask` [rows, cached] says which
cache columns are real, `length` [rows] how many of them are. Padding is always on the right of what is
added, so no query is without a key. Shapes: B rows, U distinct prompts, S new tokens, K cached columns, L
mixture-of-experts layers, k experts a token, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.policy.network import Context, Network
from lightning_smith.miniature.policy.text import ChatText

CACHED_TOKENS = 48_000
"""Tokens whose keys and values are kept for the next turn of their conversation (2 KB each in fp32)."""

WORTH_COPYING = 0.75
"""A batch is copied without its finished rows once no more than this part of it goes on."""


@dataclass(frozen=True)
class SamplingRequest:
    """One answer wanted, of at most `max_tokens`; temperature 0 takes the likeliest token each time."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Completion:
    """One answer: sampled tokens (the end token included), their log-probabilities at temperature 1.

    `routes` is uint8 [prompt + answer - 1, L, k], the experts of every token that was fed to the model (the
    last sampled one never is); None unless asked for.
    """

    tokens: list[int]
    log_probs: list[float]
    finished: bool
    routes: np.ndarray | None


def draws(seed: int, prompt_length: int, count: int) -> np.ndarray:
    """`count` uniform numbers in [0, 1) for one answer.

    The prompt's length is mixed in because the turns of a rollout share its seed: without it every turn would
    draw the same numbers.
    """
    digest = hashlib.sha256(f"{seed}\0{prompt_length}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big"))).random(count)


def pick(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Next tokens [B] of `logits` [B, V]: inverse of the cumulative distribution at `uniforms` [B].

    A row of temperature 0 takes its likeliest token.
    """
    likeliest = logits.argmax(dim=-1)
    if not bool((temperatures > 0).any()):
        return likeliest
    scaled = logits.double() / temperatures.clamp(min=1e-6)[:, None]
    cumulative = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logits.size(-1) - 1)
    return torch.where(temperatures > 0, sampled, likeliest)


@dataclass
class _Kept:
    """Keys and values of one conversation so far, without gaps: per layer [heads, tokens, head size]."""

    keys: list[Tensor]
    values: list[Tensor]
    routes: Tensor | None  # [tokens, L, k]

    @property
    def tokens(self) -> int:
        return self.keys[0].size(1)


class _Conversations:
    """Least recently used store of `_Kept`, found by their owner and the exact tokens they stand for."""

    def __init__(self, limit: int) -> None:
        self._limit, self._total = limit, 0
        self._kept: OrderedDict[tuple[int, tuple[int, ...]], _Kept] = OrderedDict()

    def longest(self, owner: int, prompt: tuple[int, ...], turn_ends: frozenset[int]) -> _Kept | None:
        """Return the longest kept beginning of `prompt`.

        An answer is kept up to its last sampled token, which is not fed: the end of the turn, or the token
        before it if the answer was cut at its length limit.
        """
        for position in range(len(prompt) - 1, 1, -1):
            if prompt[position] in turn_ends:
                for beginning in (prompt[:position], prompt[: position - 1]):
                    if (owner, beginning) in self._kept:
                        self._kept.move_to_end((owner, beginning))
                        return self._kept[owner, beginning]
        return None

    def add(self, owner: int, tokens: tuple[int, ...], kept: _Kept) -> None:
        if (owner, tokens) in self._kept:
            return
        self._kept[owner, tokens] = kept
        self._total += kept.tokens
        while self._total > self._limit and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._total -= dropped.tokens

    def clear(self) -> None:
        self._kept.clear()
        self._total = 0


@dataclass
class _State:
    """A batch between two forward passes."""

    context: Context
    logits: Tensor  # [B, V], of the next token
    routes: Tensor | None  # uint8 [B, K, L, k]

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) these rows."""
        self.context, self.logits = self.context.selected(rows), self.logits[rows]
        if self.routes is not None:
            self.routes = self.routes[rows]


class Sampler:
    """A policy loaded for sampling.

    Not for use by two threads at once. With `record_routes` (mixture of experts only) completions carry
    `routes`.
    """

    def __init__(self, folder: Path | str, dtype: torch.dtype, *, record_routes: bool = False) -> None:
        self.network = Network.load(folder, dtype)
        self.text = ChatText(folder)
        if record_routes and not self.network.shape.experts:
            raise UserError(
                f"{folder} is a dense model: it has no routed experts to record, drop --routed-experts"
            )
        self.record_routes = record_routes
        self.max_positions = self.network.shape.max_positions
        self.stop_tokens = self.network.stop_tokens
        self.forwarded_tokens = 0
        """Prompt and answer tokens computed so far; what the cache saved is not counted."""
        self._conversations = _Conversations(CACHED_TOKENS)

    def limit_positions(self, tokens: int) -> None:
        """Hold no more than `tokens`, prompt and answer. Raise UserError if the model cannot hold so many."""
        if not 1 < tokens <= self.network.shape.max_positions:
            raise UserError(
                f"a context of {tokens} tokens was asked for, and the model holds {self.network.shape.max_positions}: "
                "lower policies.*.max_model_len"
            )
        self.max_positions = tokens

    def encode(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Prompt tokens of a conversation, up to where the policy starts to write."""
        return self.text.encode_chat(messages)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer, special tokens left out."""
        return self.text.decode(tokens)

    def load_weights(self, folder: Path | str) -> None:
        """Replace all weights by those of a Hugging Face folder, and drop what was kept of conversations.

        Raise UserError for a folder that is absent, damaged or another model's; the weights are then
        unchanged.
        """
        self.network.load_weights(folder)
        self._conversations.clear()

    @torch.no_grad()
    def sample(
        self, requests: Sequence[SamplingRequest], deliver: Callable[[int, Completion], None] | None = None
    ) -> list[Completion]:
        """Answer all requests in one batch; `deliver(index, completion)` is called as soon as each is
        finished.

        A prompt must leave room for one token (`max_positions`); the answer is cut where the room ends.
        """
        results: dict[int, Completion] = {}
        self._run(requests, results, deliver)
        return [results[index] for index in range(len(requests))]

    def _run(
        self,
        requests: Sequence[SamplingRequest],
        results: dict[int, Completion],
        deliver: Callable[[int, Completion], None] | None,
    ) -> None:
        kept = [self._conversations.longest(self._owner(r), r.prompt, self.stop_tokens) for r in requests]
        distinct = {(r.prompt, id(item)): (r.prompt, item) for r, item in zip(requests, kept, strict=True)}
        state = self._prefill(list(distinct.values()))
        place = {key: row for row, key in enumerate(distinct)}
        state.select(torch.tensor([place[r.prompt, id(k)] for r, k in zip(requests, kept, strict=True)]))

        room = [min(r.max_tokens, self.max_positions - len(r.prompt)) for r in requests]
        uniforms = torch.from_numpy(
            np.stack([draws(r.seed, len(r.prompt), max(room)) for r in requests])
        )  # [requests, steps]
        temperatures = torch.tensor([r.temperature for r in requests], dtype=torch.float64)
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        # The request that a row of the batch answers; finished ones stay in it until copying it is worth while.
        rows = torch.arange(len(requests))

        for step in range(max(room)):
            chosen = pick(state.logits, temperatures[rows], uniforms[rows, step])
            chosen_log_probs = torch.log_softmax(state.logits, dim=-1).gather(-1, chosen[:, None])[:, 0]
            going_on: list[int] = []
            for row, (index, token, log_prob) in enumerate(
                zip(rows.tolist(), chosen.tolist(), chosen_log_probs.tolist(), strict=True)
            ):
                if index in results:
                    continue
                tokens[index].append(token)
                log_probs[index].append(log_prob)
                finished = token in self.stop_tokens
                if not finished and len(tokens[index]) < room[index]:
                    going_on.append(row)
                    continue
                results[index] = self._finish(
                    requests[index], tokens[index], log_probs[index], finished, state, row
                )
                if deliver is not None:
                    deliver(index, results[index])
            if not going_on:
                return
            if len(going_on) <= WORTH_COPYING * len(rows):
                selected = torch.tensor(going_on)
                state.select(selected)
                rows, chosen = rows[selected], chosen[selected]
            self._extend(state, chosen[:, None], torch.ones(len(rows), 1, dtype=torch.bool))

    def _owner(self, request: SamplingRequest) -> int:
        """Whose conversations a request may continue.

        Anybody's with the same tokens, unless experts are recorded: in bf16 two computations of the same
        tokens may choose different experts, and what is recorded must be what the answer was sampled with.
        A rollout is known by its seed.
        """
        return request.seed if self.record_routes else 0

    def _prefill(
        self,
        prompts: Sequence[tuple[tuple[int, ...], _Kept | None]],
    ) -> _State:
        """Compute prompts, each on top of what was kept of its beginning."""
        state = self._restore([kept for _, kept in prompts])
        new = [prompt[kept.tokens if kept else 0 :] for prompt, kept in prompts]
        width = max(len(row) for row in new)
        tokens = torch.tensor([list(row) + [0] * (width - len(row)) for row in new])
        lengths = torch.tensor([len(row) for row in new])
        self._extend(state, tokens, torch.arange(width)[None, :] < lengths[:, None])
        return state

    def _restore(self, kept: Sequence[_Kept | None]) -> _State:
        """Return a state that holds what was kept, padded on the right; rows without anything are empty."""
        rows, width = len(kept), max(item.tokens if item else 0 for item in kept)
        lengths = torch.tensor([item.tokens if item else 0 for item in kept])
        shape, context = self.network.shape, self.network.empty(rows)
        context.mask, context.length = torch.arange(width)[None, :] < lengths[:, None], lengths
        routes = torch.zeros(rows, width, shape.layers, shape.top_k, dtype=torch.uint8)
        for index in range(shape.layers if width else 0):
            keys = context.keys[index].new_zeros(rows, shape.kv_heads, width, shape.head_size)
            values = torch.zeros_like(keys)
            for row, item in enumerate(kept):
                if item:
                    keys[row, :, : item.tokens] = item.keys[index]
                    values[row, :, : item.tokens] = item.values[index]
            context.keys[index], context.values[index] = keys, values
        for row, item in enumerate(kept):
            if item and item.routes is not None:
                routes[row, : item.tokens] = item.routes
        return _State(context, torch.empty(rows, 0), routes if self.record_routes else None)

    def _extend(self, state: _State, tokens: Tensor, mask: Tensor) -> None:
        """Feed `tokens` [B, S], real where `mask` is true; leaves the logits after each row's last real one."""
        added = mask.sum(dim=-1)
        hidden, experts = self.network.read(state.context, tokens, mask)
        state.logits = self.network.logits(hidden[torch.arange(len(tokens)), added - 1])
        self.forwarded_tokens += int(added.sum())
        if state.routes is not None and experts is not None:
            state.routes = torch.cat([state.routes, experts], dim=1)

    def _finish(
        self,
        request: SamplingRequest,
        tokens: list[int],
        log_probs: list[float],
        finished: bool,
        state: _State,
        row: int,
    ) -> Completion:
        columns = state.context.mask[row]
        routes = state.routes[row][columns] if state.routes is not None else None
        fed = request.prompt + tuple(tokens[:-1])
        keys = [layer[row][:, columns] for layer in state.context.keys]
        values = [layer[row][:, columns] for layer in state.context.values]
        self._conversations.add(self._owner(request), fed, _Kept(keys, values, routes))
        return Completion(tokens, log_probs, finished, routes.numpy() if routes is not None else None)
