"""From a rollout's recorded model requests to training rows.

Every model request of a rollout is one turn: prompt tokens, sampled tokens, their log-probabilities, and
for a mixture of experts the routed experts. A turn whose prompt begins with all tokens of the turn before
(prompt and answer, token by token) continues its row; otherwise a new row starts, as in Agent Lightning's
rollout adapter. A rollout of many turns is thus mostly one row, in which only sampled tokens are trained
on.
"""

from __future__ import annotations

import ast
import base64
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_smith.core.errors import UserError


@dataclass(frozen=True)
class RouteShape:
    """What recorded experts of a model look like: its mixture-of-experts layers, experts a token, experts."""

    layers: int
    top_k: int
    experts: int


@dataclass(frozen=True)
class Routes:
    """Experts of the first `positions` tokens of a row: uint8 in C order, [positions, layers, top_k]."""

    positions: int
    layers: int
    top_k: int
    data: bytes

    def cut(self, positions: int) -> Routes:
        """Return the first `positions` of them."""
        return Routes(positions, self.layers, self.top_k, self.data[: positions * self.layers * self.top_k])


@dataclass(frozen=True)
class Row:
    """One token sequence to train on.

    `tokens`, `sampled` and `log_probs` have one entry a token: whether the policy sampled it, and its
    log-probability when it did (0.0 for prompt and observation tokens). `routes` covers all tokens but the
    last, which is never fed to the model.
    """

    tokens: tuple[int, ...]
    sampled: tuple[bool, ...]
    log_probs: tuple[float, ...]
    routes: Routes | None = None

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.sampled)


@dataclass(frozen=True)
class Trajectory:
    """Training rows of one rollout; `faults` counts rows that were masked, `notes` says which and why."""

    rows: tuple[Row, ...]
    faults: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Turn:
    """One model request: its number in the rollout (from 1), tokens, log-probabilities, encoded routes."""

    number: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    log_probs: tuple[float, ...]
    routes: str | None

    @property
    def context(self) -> tuple[int, ...]:
        return self.prompt + self.answer


def build_trajectory(events: Iterable[dict[str, Any]], *, name: str, routes: RouteShape | None) -> Trajectory:
    """Training rows of a rollout from its events in triplet format.

    Args:
        events: of all kinds; only successful `model_request` ones are used.
        name: of the rollout, for messages.
        routes: shape of the recorded experts if they are to be replayed, None if they are not.

    A row whose experts are missing, unreadable or too few is left out and counted in `faults`
    (`routes_missing`, `routes_unreadable`, `routes_short`): padding would force expert 0 on its tokens.
    Surplus ones are cut.

    Raise UserError if the policy server returned no token ids or log-probabilities, or experts that do not
    fit the model: nothing that such a server sends can be trained on.
    """
    rows: list[Row] = []
    faults: Counter[str] = Counter()
    notes: list[str] = []
    for turns in _merge(_read_turns(events, name)):
        row = _join(turns)
        if routes is not None:
            where = f"model request {turns[-1].number} of {name}"
            needed = len(row.tokens) - 1
            try:
                found = decode_routes(turns[-1].routes, routes, needed, where=where)
            except RoutesError as error:
                faults[error.kind] += 1
                notes.append(str(error))
                continue
            row = Row(row.tokens, row.sampled, row.log_probs, found)
        rows.append(row)
    return Trajectory(tuple(rows), faults, tuple(notes))


class RoutesError(Exception):
    """The experts of one row cannot be replayed; `kind` is the counter that it belongs to."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def decode_routes(payload: str | None, shape: RouteShape, needed: int, *, where: str) -> Routes:
    """Read base64 of `numpy.save` (uint8 [positions, layers, top_k]) and keep the first `needed` positions.

    Raise RoutesError if this row must be masked, and UserError if the engine records other layers, experts
    that the model does not have, or nothing but zeros: then no row of it can be trusted.
    """
    if payload is None:
        raise RoutesError("routes_missing", f"{where} has no routed experts")
    try:
        positions, layers, top_k, data = _parse_npy(base64.b64decode(payload, validate=True))
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise RoutesError("routes_unreadable", f"{where}: routed experts cannot be read ({error})") from None
    if (layers, top_k) != (shape.layers, shape.top_k):
        raise UserError(
            f"{where}: the policy server recorded experts of {layers} layers, {top_k} a token, and the model "
            f"has {shape.layers} such layers, {shape.top_k} a token: serve the model that is trained"
        )
    if data and max(data) >= shape.experts:
        raise UserError(
            f"{where}: the policy server recorded expert {max(data)}, and the trained model has "
            f"{shape.experts} experts: serve the model that is trained"
        )
    if not any(data):
        raise UserError(
            f"{where}: all recorded experts are 0, so the policy server does not record them: start it with "
            "recording on, or train without router_replay"
        )
    if positions < needed:
        raise RoutesError("routes_short", f"{where}: routed experts are short by {needed - positions}")
    return Routes(positions, layers, top_k, data).cut(needed)


def _parse_npy(raw: bytes) -> tuple[int, int, int, bytes]:
    """Shape and bytes of a three-dimensional uint8 array in numpy's file format (versions 1 to 3).

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    if raw[:6] != b"\x93NUMPY" or len(raw) < 12:
        raise ValueError("no numpy file")
    width = 2 if raw[6] == 1 else 4
    start = 8 + width + int.from_bytes(raw[8 : 8 + width], "little")
    header = ast.literal_eval(raw[8 + width : start].decode("latin1").strip())
    shape, data = header["shape"], raw[start:]
    if header["descr"] != "|u1" or header["fortran_order"] or len(shape) != 3:
        raise ValueError(f"not uint8 [positions, layers, top_k] but {header}")
    if len(data) != math.prod(shape):
        raise ValueError(f"{len(data)} bytes for shape {shape}")
    return (*shape, data)


def _read_turns(events: Iterable[dict[str, Any]], name: str) -> list[_Turn]:
    """Successful model requests in order."""
    turns = []
    requests = [event["data"] for event in events if event["event_type"] == "model_request"]
    for number, data in enumerate(requests, start=1):
        if data.get("status", "ok") != "ok" or data.get("error"):
            continue
        prompt, answer = data.get("prompt_token_ids"), data.get("response_token_ids")
        log_probs = data.get("response_log_probs")
        if not prompt or not answer:
            raise UserError(
                f"policy server returns no token ids (model request {number} of {name}): serve the model "
                "with a server that honours return_token_ids"
            )
        if log_probs is None or len(log_probs) != len(answer):
            raise UserError(
                f"policy server returns no log-probabilities (model request {number} of {name}): serve the "
                "model with a server that honours logprobs"
            )
        turns.append(
            _Turn(number, tuple(prompt), tuple(answer), tuple(log_probs), data.get("routed_experts"))
        )
    return turns


def _merge(turns: Sequence[_Turn]) -> list[list[_Turn]]:
    """Turns grouped into rows: each prompt of a group begins with the whole context of the turn before."""
    groups: list[list[_Turn]] = []
    for turn in turns:
        if groups:
            context = groups[-1][-1].context
            if turn.prompt[: len(context)] == context:
                groups[-1].append(turn)
                continue
        groups.append([turn])
    return groups


def _join(turns: Sequence[_Turn]) -> Row:
    """One row of merged turns; observation tokens stand between the answers."""
    tokens: tuple[int, ...] = ()
    sampled: list[bool] = []
    log_probs: list[float] = []
    for turn in turns:
        unsampled = len(turn.prompt) - len(tokens)
        sampled += [False] * unsampled + [True] * len(turn.answer)
        log_probs += [0.0] * unsampled + list(turn.log_probs)
        tokens = turn.context
    return Row(tokens, tuple(sampled), tuple(log_probs))
