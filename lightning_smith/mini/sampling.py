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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lightning_smith.errors import UserError
from lightning_smith.mini.policy import load_policy
from lightning_smith.mini.router_replay import Routers
from lightning_smith.training.weights import load_weights

SPARE_COLUMNS = 64
"""Columns by which a batch's keys and values grow, so that a token is written and not everything copied."""

CACHED_TOKENS = 48_000
"""Tokens whose keys and values are kept for the next turn of their conversation (2 KB each in fp32)."""


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
        """The longest kept beginning of `prompt`.

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


class _RoomyLayer(DynamicLayer):
    """Keys and values of one layer in buffers with spare columns; `keys` and `values` are views of what is used."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._buffers = (key_states[:, :, :0], value_states[:, :, :0])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.size(2)
        if self._buffers[0].size(2) < after:
            self._buffers = (_enlarged(self._buffers[0], after), _enlarged(self._buffers[1], after))
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, before:after] = states
        self._use(after)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        used = self.get_seq_length()
        self._buffers = (self._buffers[0].index_select(0, indices), self._buffers[1].index_select(0, indices))
        self._use(used)

    def _use(self, columns: int) -> None:
        self.keys, self.values = (buffer[:, :, :columns] for buffer in self._buffers)


def _enlarged(buffer: Tensor, columns: int) -> Tensor:
    """The columns of `buffer` [B, heads, columns, size], with room for `columns` and some more."""
    larger = buffer.new_empty(buffer.size(0), buffer.size(1), columns + SPARE_COLUMNS, buffer.size(3))
    larger[:, :, : buffer.size(2)] = buffer
    return larger


@dataclass
class _State:
    """A batch between two forward passes."""

    cache: DynamicCache
    mask: Tensor  # [B, K]
    length: Tensor  # [B]
    logits: Tensor  # [B, V], of the next token
    routes: Tensor | None  # [B, K, L, k]

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) these rows."""
        self.cache.batch_select_indices(rows)
        self.mask, self.length, self.logits = self.mask[rows], self.length[rows], self.logits[rows]
        if self.routes is not None:
            self.routes = self.routes[rows]


class Sampler:
    """A policy loaded for sampling.

    Not for use by two threads at once. With `record_routes` (mixture of experts only) completions carry
    `routes`.
    """

    def __init__(self, folder: Path | str, dtype: torch.dtype, *, record_routes: bool = False) -> None:
        self.model: Any
        self.tokenizer: Any
        self.model, self.tokenizer = load_policy(folder, dtype)
        self.routers = Routers(self.model)
        if record_routes and not self.routers:
            raise UserError(
                f"{folder} is a dense model: it has no routed experts to record, drop --routed-experts"
            )
        self.record_routes = record_routes
        self.max_positions = int(self.model.config.max_position_embeddings)
        stop = self.model.generation_config.eos_token_id
        self.stop_tokens = frozenset([stop] if isinstance(stop, int) else stop)
        self.forwarded_tokens = 0
        """Prompt and answer tokens computed so far; what the cache saved is not counted."""
        self._conversations = _Conversations(CACHED_TOKENS)

    def encode(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Prompt tokens of a conversation, up to where the policy starts to write."""
        text = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, special tokens left out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def load_weights(self, folder: Path | str) -> None:
        """Replace all weights by those of a Hugging Face folder, and drop what was kept of conversations.

        Raises UserError for a folder that is absent, damaged or another model's; the weights are then
        unchanged.
        """
        load_weights(self.model, folder)
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
        if self.record_routes:
            with self.routers.recording() as take:
                self._run(requests, take, results, deliver)
        else:
            self._run(requests, None, results, deliver)
        return [results[index] for index in range(len(requests))]

    def _run(
        self,
        requests: Sequence[SamplingRequest],
        take: Callable[[int, int], Tensor] | None,
        results: dict[int, Completion],
        deliver: Callable[[int, Completion], None] | None,
    ) -> None:
        kept = [self._conversations.longest(self._owner(r), r.prompt, self.stop_tokens) for r in requests]
        distinct = {(r.prompt, id(item)): (r.prompt, item) for r, item in zip(requests, kept, strict=True)}
        state = self._prefill(list(distinct.values()), take)
        place = {key: row for row, key in enumerate(distinct)}
        state.select(torch.tensor([place[r.prompt, id(k)] for r, k in zip(requests, kept, strict=True)]))

        room = [min(r.max_tokens, self.max_positions - len(r.prompt)) for r in requests]
        uniforms = torch.from_numpy(
            np.stack([draws(r.seed, len(r.prompt), max(room)) for r in requests])
        )  # [requests, steps]
        temperatures = torch.tensor([r.temperature for r in requests], dtype=torch.float64)
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        live = torch.arange(len(requests))

        for step in range(max(room)):
            logits = state.logits.float()
            chosen = pick(logits, temperatures[live], uniforms[live, step])
            chosen_log_probs = torch.log_softmax(logits, dim=-1).gather(-1, chosen[:, None])[:, 0]
            going_on: list[int] = []
            for row, (index, token, log_prob) in enumerate(
                zip(live.tolist(), chosen.tolist(), chosen_log_probs.tolist(), strict=True)
            ):
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
            if len(going_on) < len(live):
                rows = torch.tensor(going_on)
                state.select(rows)
                live, chosen = live[rows], chosen[rows]
            self._extend(state, chosen[:, None], torch.ones(len(live), 1, dtype=torch.long), take)

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
        take: Callable[[int, int], Tensor] | None,
    ) -> _State:
        """Compute prompts, each on top of what was kept of its beginning."""
        state = self._restore([kept for _, kept in prompts])
        new = [prompt[kept.tokens if kept else 0 :] for prompt, kept in prompts]
        width = max(len(row) for row in new)
        tokens = torch.tensor([list(row) + [0] * (width - len(row)) for row in new])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in new])
        self._extend(state, tokens, mask, take)
        return state

    def _restore(self, kept: Sequence[_Kept | None]) -> _State:
        """A state that holds what was kept, padded on the right; rows without anything are empty."""
        rows, width = len(kept), max(item.tokens if item else 0 for item in kept)
        lengths = torch.tensor([item.tokens if item else 0 for item in kept])
        cache = DynamicCache(config=self.model.config)
        cache.layers = [_RoomyLayer() for _ in cache.layers]
        mask = (torch.arange(width)[None, :] < lengths[:, None]).long()
        routes = torch.zeros(rows, width, self.routers.layers, self.routers.top_k, dtype=torch.uint8)
        example = next((item for item in kept if item), None)
        if example is not None:
            for layer in range(len(example.keys)):
                heads, _, size = example.keys[layer].shape
                keys = example.keys[layer].new_zeros(rows, heads, width, size)
                values = torch.zeros_like(keys)
                for row, item in enumerate(kept):
                    if item:
                        keys[row, :, : item.tokens] = item.keys[layer]
                        values[row, :, : item.tokens] = item.values[layer]
                cache.update(keys, values, layer)
            for row, item in enumerate(kept):
                if item and item.routes is not None:
                    routes[row, : item.tokens] = item.routes
        return _State(cache, mask, lengths, torch.empty(rows, 0), routes if self.record_routes else None)

    def _extend(
        self, state: _State, tokens: Tensor, mask: Tensor, take: Callable[[int, int], Tensor] | None
    ) -> None:
        """Feed `tokens` [B, S], real where `mask` is 1; leaves the logits after each row's last real one."""
        added = mask.sum(dim=-1)
        state.mask = torch.cat([state.mask, mask], dim=-1)
        hidden = self.model.model(
            input_ids=tokens,
            attention_mask=state.mask,
            position_ids=state.length[:, None] + torch.arange(tokens.size(1)),
            cache=state.cache,
            use_cache=True,
        ).last_hidden_state
        state.length = state.length + added
        state.logits = self.model.lm_head(hidden[torch.arange(len(tokens)), added - 1])
        self.forwarded_tokens += int(added.sum())
        if take is not None and state.routes is not None:
            state.routes = torch.cat([state.routes, take(*tokens.shape)], dim=1)

    def _finish(
        self,
        request: SamplingRequest,
        tokens: list[int],
        log_probs: list[float],
        finished: bool,
        state: _State,
        row: int,
    ) -> Completion:
        columns = state.mask[row].bool()
        routes = state.routes[row][columns] if state.routes is not None else None
        fed = request.prompt + tuple(tokens[:-1])
        layers: list[Any] = state.cache.layers
        keys = [layer.keys[row][:, columns] for layer in layers]
        values = [layer.values[row][:, columns] for layer in layers]
        self._conversations.add(self._owner(request), fed, _Kept(keys, values, routes))
        return Completion(tokens, log_probs, finished, routes.numpy() if routes is not None else None)
