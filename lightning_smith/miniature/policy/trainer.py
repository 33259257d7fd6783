"""The miniature's learner: GRPO on the CPU, in fp32.

Loss of a step (`per_rollout_mean`, as published for the coding agent), summed over sampled tokens t of all
rows:

    r_t = exp(logp_t - rollout_logp_t)
    l_t = max(-A r_t, -A clip(r_t, 1 - clip_low, 1 + clip_high)), for A < 0 at most -A * 3
    loss = sum_t l_t / (sampled tokens of t's rollout * rows)

`cispo_per_rollout_mean` has l_t = -stopgrad(clip(r_t)) A logp_t instead. A is the rollout's advantage,
shared by all its turns; `rows` counts the training rows of the step, those of uniform groups included. The
old log-probabilities are the recorded ones of the rollout engine, verl's `bypass_mode`. The published recipes
leave that off: they compute old log-probabilities anew with the trainer's weights before the first update.

Rows that begin with the same tokens (and, when replaying, the same experts) share one computation of that
beginning, forward and backward: the eight rollouts of a group mostly differ from their second answer on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from torch import Tensor

from lightning_smith.config.recipes import Recipe
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file
from lightning_smith.gateway.client import Gateway
from lightning_smith.miniature.policy.network import Context, Network
from lightning_smith.training.segments import TrainedRollout
from lightning_smith.training.trajectories import RouteShape, Row

ROWS_PER_PASS = 64
"""Rows whose graph is held in memory at once; gradients of several passes add up."""

DUAL_CLIP = 3.0
"""Bound of the ratio for negative advantages: verl's default `clip_ratio_c`."""


# ------------------------------------------------------------------------------ log-probabilities


@dataclass(frozen=True)
class _Piece:
    """A stretch of a row that begins with an answer (or with the row): tokens[start:end], the answer's end.

    `fed` is where the tokens that go into the model end: one before `end` in the last piece.
    """

    start: int
    end: int
    answer_end: int
    fed: int


def _pieces(row: Row) -> list[_Piece]:
    """Cut a row where an answer begins: prompt, then answer and observation, ..., the last answer."""
    length = len(row.tokens)
    starts = [0] + [i for i in range(1, length) if row.sampled[i] and not row.sampled[i - 1]]
    pieces = []
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        answer_end = next((i for i in range(start, end) if not row.sampled[i]), end)
        pieces.append(_Piece(start, end, answer_end, min(end, length - 1)))
    return pieces


class _Node:
    """A distinct beginning of rows, up to the end of a piece; `parent` is the node of the piece before."""

    __slots__ = ("first", "index", "parent", "piece", "row")

    def __init__(self, row: Row, piece: _Piece, parent: _Node | None, index: int) -> None:
        self.row, self.piece, self.parent, self.index = row, piece, parent, index
        self.first = 0
        """Where the log-probabilities of its answer begin among those of its level."""


def row_log_probs(network: Network, rows: Sequence[Row], *, replay: bool = False) -> list[Tensor]:
    """Log-probabilities of each row's sampled tokens, in order, with gradient; one tensor a row.

    With `replay` every token goes to the experts recorded in its row's `routes`.
    """
    levels, paths = _build_tree(rows, with_routes=replay)
    collected: list[list[Tensor]] = [[] for _ in rows]
    state: _Level | None = None
    for depth, nodes in enumerate(levels):
        state = _forward_level(network, nodes, state, replay=replay)
        for row, path in enumerate(paths):
            if depth < len(path):
                node = path[depth]
                collected[row].append(state.log_probs[node.first : node.first + _answer_length(node)])
    return [torch.cat(parts) for parts in collected]


def _build_tree(rows: Sequence[Row], *, with_routes: bool) -> tuple[list[list[_Node]], list[list[_Node]]]:
    """Return distinct beginnings by level (number of pieces before), and each row's path of nodes through them."""
    levels: list[list[_Node]] = []
    known: list[dict[tuple[Any, ...], _Node]] = []
    paths: list[list[_Node]] = []
    for row in rows:
        path: list[_Node] = []
        for depth, piece in enumerate(_pieces(row)):
            if depth == len(levels):
                levels.append([])
                known.append({})
            routes = row.routes.cut(piece.fed).data if with_routes and row.routes is not None else None
            key = (row.tokens[: piece.end], piece.fed, routes)
            if key not in known[depth]:
                node = _Node(row, piece, path[-1] if path else None, len(levels[depth]))
                known[depth][key] = node
                levels[depth].append(node)
            path.append(known[depth][key])
        paths.append(path)
    return levels, paths


@dataclass
class _Level:
    """What the next level continues from: what its nodes have read, and the last hidden state of each."""

    context: Context
    last_hidden: Tensor | None
    log_probs: Tensor  # of all answers of the level, node after node


def _forward_level(
    network: Network, nodes: Sequence[_Node], before: _Level | None, *, replay: bool
) -> _Level:
    """Feed one piece of every node, each on top of its parent's context."""
    level = _continue(network, nodes, before)
    start_hidden = level.last_hidden
    fed = [node.row.tokens[node.piece.start : node.piece.fed] for node in nodes]
    lengths = torch.tensor([len(tokens) for tokens in fed])
    width = int(lengths.max())
    if width:
        tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in fed])
        added = torch.arange(width)[None, :] < lengths[:, None]
        experts = _stack_routes(nodes, width, network) if replay else None
        hidden, _ = network.read(level.context, tokens, added, experts)
        if start_hidden is not None:
            hidden = torch.cat([start_hidden[:, None], hidden], dim=1)
    else:
        assert start_hidden is not None
        hidden = start_hidden[:, None]
    ends = lengths - (0 if start_hidden is not None else 1)
    level.last_hidden = hidden[torch.arange(len(nodes)), ends]
    level.log_probs = _answer_log_probs(network, nodes, hidden, has_start=start_hidden is not None)
    return level


def _continue(network: Network, nodes: Sequence[_Node], before: _Level | None) -> _Level:
    """Return the state that the nodes of a level start from: their parents', or an empty one."""
    nothing = torch.empty(0)
    if before is None:
        return _Level(network.empty(len(nodes)), None, nothing)
    parents = torch.tensor([node.parent.index for node in nodes if node.parent is not None])
    assert before.last_hidden is not None
    return _Level(before.context.selected(parents), before.last_hidden[parents], nothing)


def _answer_log_probs(network: Network, nodes: Sequence[_Node], hidden: Tensor, *, has_start: bool) -> Tensor:
    """Log-probabilities of the nodes' answers, node after node, each token from the hidden state before it.

    `hidden` [nodes, positions, H] starts with the state before the piece if `has_start`; a row that begins
    with sampled tokens cannot exist, because every prompt has tokens.
    """
    node_of: list[int] = []
    position: list[int] = []
    target: list[int] = []
    for index, node in enumerate(nodes):
        node.first = len(target)
        length = _answer_length(node)
        node_of += [index] * length
        position += range(length)
        target += node.row.tokens[node.piece.start : node.piece.start + length]
    if not target:
        return hidden.new_empty(0)
    assert has_start
    logits = network.logits(hidden[torch.tensor(node_of), torch.tensor(position)])
    return torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(target)[:, None])[:, 0]


def _answer_length(node: _Node) -> int:
    return node.piece.answer_end - node.piece.start


def _stack_routes(nodes: Sequence[_Node], width: int, network: Network) -> Tensor:
    """Recorded experts of what is fed for each node, [nodes, width, layers, top_k]; padding gets 0, 1."""
    shape = network.shape
    padding = torch.arange(shape.top_k, dtype=torch.uint8)
    stacked = padding.expand(len(nodes), width, shape.layers, shape.top_k).clone()
    for index, node in enumerate(nodes):
        routes = node.row.routes
        if routes is None:
            raise ValueError("a row without recorded experts cannot be replayed")
        all_positions = torch.frombuffer(bytearray(routes.data), dtype=torch.uint8).view(
            routes.positions, routes.layers, routes.top_k
        )
        piece = all_positions[node.piece.start : node.piece.fed]
        stacked[index, : len(piece)] = piece
    return stacked


# ------------------------------------------------------------------------------------------- loss


def policy_loss(log_probs: Tensor, old: Tensor, advantage: Tensor, weight: Tensor, recipe: Recipe) -> Tensor:
    """Return the loss of the module's docstring; all tensors [tokens], `weight` = 1 / (rollout's tokens * rows)."""
    ratio, clipped = _ratios(log_probs, old, recipe)
    if recipe.loss == "cispo_per_rollout_mean":
        return (-clipped.detach() * advantage * log_probs * weight).sum()
    losses = torch.maximum(-advantage * ratio, -advantage * clipped)
    bounded = torch.minimum(losses, -advantage * DUAL_CLIP)
    return (torch.where(advantage < 0, bounded, losses) * weight).sum()


def clipped_tokens(log_probs: Tensor, old: Tensor, advantage: Tensor, recipe: Recipe) -> Tensor:
    """Return which tokens the clip to 1 - clip_low and 1 + clip_high changes, as verl's `pg_clipfrac` counts; bool
    [tokens].

    With CISPO every ratio outside counts, else only one that is clipped to the larger loss.
    """
    ratio, clipped = _ratios(log_probs, old, recipe)
    if recipe.loss == "cispo_per_rollout_mean":
        return ratio != clipped
    return -advantage * clipped > -advantage * ratio


def _ratios(log_probs: Tensor, old: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Probability ratios and the clipped ones."""
    ratio = (log_probs - old).clamp(-20.0, 20.0).exp()
    return ratio, ratio.clamp(1 - recipe.clip_low, 1 + recipe.clip_high)


@dataclass(frozen=True)
class Gap:
    """How far the trainer's log-probabilities are from the recorded ones, over sampled tokens.

    `k3` estimates the KL divergence of the two policies by mean(exp(d) - 1 - d), d the difference
    (http://joschu.net/blog/kl-approx.html).
    """

    largest: float
    mean: float
    k3: float

    @classmethod
    def of(cls, log_probs: Tensor, old: Tensor) -> Gap:
        """Gap of two tensors [tokens]."""
        difference = (log_probs.detach() - old).double()
        k3 = difference.clamp(-20.0, 20.0).exp() - 1 - difference
        return cls(float(difference.abs().max()), float(difference.abs().mean()), float(k3.mean()))

    def metrics(self, suffix: str = "") -> dict[str, float]:
        """Flat metrics, e.g. `gap_max`, `gap_mean`, `gap_k3`."""
        return {f"gap_max{suffix}": self.largest, f"gap_mean{suffix}": self.mean, f"gap_k3{suffix}": self.k3}


# ---------------------------------------------------------------------------------------- learner


class WeightPush:
    """Hands weights to the rollout engine: the policy server loads a folder while the gateway pauses."""

    def __init__(self, gateway: Gateway, policy_url: str, timeout_s: float = 120.0) -> None:
        self._gateway, self._url, self._timeout_s = gateway, policy_url.rstrip("/"), timeout_s

    def __call__(self, folder: Path, version: int) -> None:
        """Raise UserError if the policy server does not take them; the gateway is resumed in any case."""
        self._gateway.pause("new weights")
        try:
            body = {"path": str(folder.resolve()), "version": version}
            response = httpx.post(f"{self._url}/weights", json=body, timeout=self._timeout_s, trust_env=False)
        except httpx.TransportError as error:
            raise UserError(f"the policy server at {self._url} took no weights: {error}") from None
        finally:
            self._gateway.resume()
        if response.is_error:
            raise UserError(f"the policy server at {self._url} refused the weights: {response.text[:300]}")
        if response.json().get("version") != version:
            raise UserError(
                f"the policy server at {self._url} does not report version {version} of the weights"
            )


class GrpoLearner:
    """A policy in fp32 with its AdamW; see `training.segments.Learner` for the methods' contract.

    Args:
        start: Hugging Face folder of the policy before training.
        recipe: settings of the run.
        pushed: folder that weights are written to for the rollout engine.
        push: called with that folder and the step as version.
    """

    def __init__(self, start: Path, recipe: Recipe, pushed: Path, push: Any) -> None:
        self.network = Network.load(start, frozen=False)
        self._recipe, self._pushed, self._push = recipe, pushed, push
        shape = self.network.shape
        if recipe.router_replay and not shape.experts:
            raise UserError(f"router_replay is on and {start} is a dense model: it has no experts to replay")
        self.routes = RouteShape(shape.layers, shape.top_k, shape.experts) if recipe.router_replay else None
        self._optimizer = torch.optim.AdamW(
            self.network.weights.values(),
            lr=recipe.learning_rate,
            betas=(recipe.adam_beta1, recipe.adam_beta2),
            weight_decay=recipe.weight_decay,
        )

    def load(self, folder: Path) -> None:
        self.network.load_weights(folder)
        self._optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))

    def save(self, folder: Path) -> None:
        self.network.save(folder)
        torch.save(self._optimizer.state_dict(), folder / "optimizer.pt")

    def publish(self, step: int) -> str:
        self.network.save(self._pushed)
        self._push(self._pushed, step)
        return sha256_file(self._pushed / "model.safetensors")

    def update(self, rollouts: Sequence[TrainedRollout]) -> dict[str, float | None]:
        """Return the AdamW steps of one step of training, on all rollouts with an advantage; none if every group is
        uniform.

        Rollouts are dealt to the recipe's number of updates in turn, so that each group is in all of them; `rows` of
        the loss stays the whole step's.

        Metrics: updates, loss (summed over them), grad_norm (before clipping, the largest), clip_fraction (share of
        tokens whose loss the clip changed), and of the first update, whose weights sampled the rollouts, the
        log-probability gap with the experts chosen anew (`gap_*`) and, with router replay, with the recorded ones
        (`gap_*_replay`).
        """
        row_count = sum(len(rollout.rows) for rollout in rollouts)
        count = self._recipe.updates(row_count)
        updates = [self._update_once(rollouts[part::count], row_count) for part in range(count)]
        done = [update for update in updates if update is not None]
        if not done:
            return {"updates": 0, "loss": None, "grad_norm": None}
        passes = [one for update in done for one in update.passes]
        tokens = sum(len(one.old) for one in passes)
        metrics: dict[str, float | None] = {
            "updates": len(done),
            "loss": sum(one.loss for one in passes),
            "grad_norm": max(update.grad_norm for update in done),
            "clip_fraction": sum(one.clipped for one in passes) / tokens,
            "trained_tokens": tokens,
        }
        first = done[0].passes
        old = torch.cat([one.old for one in first])
        trained = torch.cat([one.log_probs for one in first])
        if self.routes is None:
            return metrics | Gap.of(trained, old).metrics()
        anew = torch.cat([one.anew for one in first if one.anew is not None])
        return metrics | Gap.of(anew, old).metrics() | Gap.of(trained, old).metrics("_replay")

    def _update_once(self, rollouts: Sequence[TrainedRollout], row_count: int) -> _Update | None:
        """One AdamW step; None if no rollout has an advantage."""
        self._optimizer.zero_grad(set_to_none=True)
        passes = [self._accumulate(part, row_count) for part in _passes(rollouts)]
        if not passes:
            return None
        norm = torch.nn.utils.clip_grad_norm_(self.network.weights.values(), self._recipe.gradient_clip)
        if not torch.isfinite(norm):
            raise UserError(f"the gradient is not finite ({float(norm)}): the learning rate is too high")
        self._optimizer.step()
        return _Update(passes, float(norm))

    def _accumulate(self, rollouts: Sequence[TrainedRollout], row_count: int) -> _Pass:
        """Add the gradient of some rollouts' loss."""
        rows = [row for rollout in rollouts for row in rollout.rows]
        tokens = [sum(row.sampled_tokens for row in rollout.rows) for rollout in rollouts]
        counts = torch.tensor([row.sampled_tokens for row in rows])
        of_rollout = torch.tensor([i for i, rollout in enumerate(rollouts) for _ in rollout.rows])
        old = torch.tensor(
            [lp for row in rows for lp, s in zip(row.log_probs, row.sampled, strict=True) if s]
        )
        advantages = torch.tensor([rollout.advantage for rollout in rollouts])[of_rollout]
        weights = 1.0 / (torch.tensor(tokens, dtype=torch.float32) * row_count)[of_rollout]
        anew = None
        if self.routes is not None:
            with torch.no_grad():
                anew = torch.cat(row_log_probs(self.network, rows))
        log_probs = torch.cat(row_log_probs(self.network, rows, replay=self.routes is not None))
        by_token = advantages.repeat_interleave(counts)
        loss = policy_loss(log_probs, old, by_token, weights.repeat_interleave(counts), self._recipe)
        loss.backward()
        clipped = clipped_tokens(log_probs.detach(), old, by_token, self._recipe)
        return _Pass(float(loss.detach()), int(clipped.sum()), log_probs.detach(), old, anew)


@dataclass(frozen=True)
class _Pass:
    """What one forward and backward pass leaves for the metrics; tensors [tokens]."""

    loss: float
    clipped: int
    log_probs: Tensor
    old: Tensor
    anew: Tensor | None


@dataclass(frozen=True)
class _Update:
    """What one step of the optimizer was made from, and the norm of its gradient before clipping."""

    passes: list[_Pass]
    grad_norm: float


def _passes(rollouts: Sequence[TrainedRollout]) -> Iterator[list[TrainedRollout]]:
    """Rollouts with an advantage, in parts of at most `ROWS_PER_PASS` rows; neighbours share beginnings."""
    part: list[TrainedRollout] = []
    rows = 0
    for rollout in rollouts:
        if rollout.advantage == 0.0:
            continue
        if part and rows + len(rollout.rows) > ROWS_PER_PASS:
            yield part
            part, rows = [], 0
        part.append(rollout)
        rows += len(rollout.rows)
    if part:
        yield part
