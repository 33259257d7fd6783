"""The miniature's policies as the rollouts and the update compute them: Qwen3, dense or mixture of experts, on a CPU.

    network = Network.load(folder)                       # a Hugging Face folder
    context = network.empty(rows)                        # nothing read yet
    hidden, experts = network.read(context, tokens, mask)
    logits = network.logits(hidden[:, -1])

It reads and writes Hugging Face folders, and tests hold it against transformers' own models, which take four times
as long to import and spend half of a decoding step on their generality. Nothing here is fast on a GPU.

Rollout routing replay (R3, arXiv 2510.11370): a mixture of experts sends a token to the experts that its router
scores highest. Rollout engine (bf16) and trainer (fp32) score slightly differently, so in the update some tokens would
go to other experts than when they were sampled, and their log-probabilities would differ by far more than rounding.
`read` therefore returns the experts that it chose, and takes experts to use instead of its choice; their weights are
the router's own in either case, so it keeps its gradient.

Shapes: B rows, S new tokens, K tokens of a row before and with them, H hidden, D head size, L layers, k experts a
token, V vocabulary.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json

SPARE_COLUMNS = 64
"""Columns by which a context grows, so that a token is written and not everything copied."""

WIDE_TOKENS = 32
"""Up to so many tokens all experts are computed for all of them, in two products; beyond, each for its own."""

_TEXTS = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
"""What this network is, in the words of a Hugging Face configuration; absent keys count as these."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a network; `experts` is 0 for a dense one."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    experts: int
    top_k: int
    normalize_top_k: bool
    epsilon: float
    rope_theta: float
    max_positions: int

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read config.json. Raise UserError for an architecture that this network does not compute."""
        config = read_json(folder / "config.json")
        kind = config.get("model_type")
        rope = config.get("rope_parameters") or {}
        differs = [key for key, value in _FIXED.items() if config.get(key, value) != value]
        if kind not in ("qwen3", "qwen3_moe") or rope.get("rope_type", "default") != "default" or differs:
            what = f"{differs[0]}={config[differs[0]]!r}" if differs else f"model_type={kind!r}"
            raise UserError(
                f"{folder}/config.json: the miniature computes Qwen3 and Qwen3-MoE with tied embeddings, not {what}"
            )
        moe = kind == "qwen3_moe"
        try:
            return cls(
                vocabulary=config["vocab_size"],
                hidden=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                kv_heads=config["num_key_value_heads"],
                head_size=config["head_dim"],
                mlp=config["moe_intermediate_size" if moe else "intermediate_size"],
                experts=(config.get("num_local_experts") or config["num_experts"]) if moe else 0,
                top_k=config["num_experts_per_tok"] if moe else 0,
                normalize_top_k=bool(config.get("norm_topk_prob", False)),
                epsilon=config["rms_norm_eps"],
                rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
                max_positions=config["max_position_embeddings"],
            )
        except KeyError as error:
            raise UserError(f"{folder}/config.json lacks {error}: it is no complete configuration") from None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor in model.safetensors."""
        qk, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            shapes |= {
                f"{name}input_layernorm.weight": (self.hidden,),
                f"{name}self_attn.q_proj.weight": (qk, self.hidden),
                f"{name}self_attn.k_proj.weight": (kv, self.hidden),
                f"{name}self_attn.v_proj.weight": (kv, self.hidden),
                f"{name}self_attn.q_norm.weight": (self.head_size,),
                f"{name}self_attn.k_norm.weight": (self.head_size,),
                f"{name}self_attn.o_proj.weight": (self.hidden, qk),
                f"{name}post_attention_layernorm.weight": (self.hidden,),
            }
            if self.experts:
                shapes[f"{name}mlp.gate.weight"] = (self.experts, self.hidden)
            for part in self.mlp_parts(layer):
                shapes |= {
                    f"{part}gate_proj.weight": (self.mlp, self.hidden),
                    f"{part}up_proj.weight": (self.mlp, self.hidden),
                    f"{part}down_proj.weight": (self.hidden, self.mlp),
                }
        return shapes | {"model.norm.weight": (self.hidden,)}

    def mlp_parts(self, layer: int) -> list[str]:
        """Prefixes of the tensors of a layer's MLP, or of those of its experts."""
        name = f"model.layers.{layer}.mlp."
        return [f"{name}experts.{expert}." for expert in range(self.experts)] if self.experts else [name]


@dataclass(frozen=True)
class _Layer:
    """A layer's weights in the form that they are used in; a dense MLP is one expert that every token uses."""

    before_attention: Tensor
    qkv: Tensor
    qk_norm: Tensor  # [heads + kv heads, D]
    out: Tensor
    before_mlp: Tensor
    router: Tensor | None  # [experts, H]
    gate_up: Tensor  # [experts, 2 * mlp, H]
    down: Tensor  # [H, experts, mlp]


@dataclass
class Context:
    """What some rows have read: keys and values by layer [B, kv heads, K, D], and which of the K columns are real.

    Rows of different lengths have gaps; `length` [B] counts a row's real columns.
    """

    keys: list[Tensor]
    values: list[Tensor]
    mask: Tensor  # bool [B, K]
    length: Tensor

    def selected(self, rows: Tensor) -> Context:
        """These rows, in this order, possibly repeated."""
        return Context(
            [keys.index_select(0, rows) for keys in self.keys],
            [values.index_select(0, rows) for values in self.values],
            self.mask[rows],
            self.length[rows],
        )


class Network:
    """A policy's weights and what they compute.

    Attributes: `weights` by their names in model.safetensors, `shape`. `frozen` weights are put into the form that
    they are used in once; others at every `read`, so that gradients reach them.

    With dtype bfloat16 weights and the results of all products, norms and sums are rounded to it, and computed in
    fp32, as matrix units do. Tensors stay fp32: most CPUs multiply bfloat16 three times as slowly.
    """

    def __init__(
        self, shape: Shape, weights: dict[str, Tensor], folder: Path, dtype: torch.dtype, *, frozen: bool
    ) -> None:
        if dtype not in (torch.float32, torch.bfloat16) or (dtype is torch.bfloat16 and not frozen):
            raise ValueError(f"a network computes in float32, or frozen in bfloat16, not in {dtype}")
        self.shape, self.weights, self._folder, self._dtype = shape, weights, folder, dtype
        for tensor in weights.values():
            tensor.requires_grad_(not frozen)
        self._cosine, self._sine = _rotations(shape)
        self._layers: list[_Layer] | None = None

    @classmethod
    def load(cls, folder: Path | str, dtype: torch.dtype = torch.float32, *, frozen: bool = True) -> Self:
        """Return the network of a Hugging Face folder, computed in `dtype`.

        Raise UserError naming the folder and what is absent, unreadable or does not fit its config.json.
        """
        folder = Path(folder)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder} lacks {name}: it is not a policy folder (scripts/miniature/make_warm_start.py makes one)"
                )
        shape = Shape.of(folder)
        return cls(shape, _read_weights(folder, shape, dtype), folder, dtype, frozen=frozen)

    def load_weights(self, folder: Path | str) -> None:
        """Take the weights of another folder of the same shape, all or none.

        Raise UserError naming the folder and what is absent, unreadable or does not fit.
        """
        tensors = _read_weights(Path(folder), self.shape, self._dtype)
        with torch.no_grad():
            for name, tensor in tensors.items():
                self.weights[name].copy_(tensor)
        self._layers = None

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: the weights in fp32, the rest as in the folder that was loaded."""
        folder.mkdir(parents=True, exist_ok=True)
        config = read_json(self._folder / "config.json")
        write_json(folder / "config.json", {**config, "dtype": "float32"})
        for name in _TEXTS:
            if (self._folder / name).exists() and folder != self._folder:
                shutil.copyfile(self._folder / name, folder / name)
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.weights.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        stop = read_json(self._folder / "generation_config.json")["eos_token_id"]
        return frozenset([stop] if isinstance(stop, int) else stop)

    def empty(self, rows: int) -> Context:
        """Return a context in which `rows` rows have read nothing."""
        nothing = self.weights["model.norm.weight"].new_empty(
            rows, self.shape.kv_heads, 0, self.shape.head_size
        )
        mask = torch.zeros(rows, 0, dtype=torch.bool)
        return Context([nothing] * self.shape.layers, [nothing] * self.shape.layers, mask, mask.sum(-1))

    def read(
        self, context: Context, tokens: Tensor, mask: Tensor, experts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Read `tokens` [B, S], real where `mask` [B, S] is true, on top of `context`, which then holds them too.

        `experts`, integer [B, S, L, k], are used instead of the router's choice. Returns hidden states [B, S, H] and
        the experts used, uint8 [B, S, L, k]; None for a dense network.
        """
        shape = self.shape
        if experts is not None and tuple(experts.shape) != (*tokens.shape, shape.layers, shape.top_k):
            raise ValueError(
                f"experts of shape {tuple(experts.shape)} for {(*tokens.shape, shape.layers, shape.top_k)}"
            )
        # Beyond the last position can only lie what nobody asks about: padding, and rows whose answer is finished.
        positions = (context.length[:, None] + torch.arange(tokens.size(1))).clamp(
            max=shape.max_positions - 1
        )
        rotation = (self._cosine[positions][:, :, None], self._sine[positions][:, :, None])
        context.mask = torch.cat([context.mask, mask], dim=1)
        context.length = context.length + mask.sum(dim=1)
        states = functional.embedding(tokens, self.weights["model.embed_tokens.weight"])
        bias = _attention_bias(context.mask, tokens.size(1), shape.heads // shape.kv_heads)
        used: list[Tensor] = []
        for index, layer in enumerate(self._assembled()):
            normed = self._norm(states, layer.before_attention)
            seen = self._attention(layer, index, normed, rotation, bias, context)
            states = self._rounded(states + self._linear(seen, layer.out))
            normed = self._norm(states, layer.before_mlp)
            scores = chosen = None
            if layer.router is not None:
                scores, chosen = self._route(
                    layer.router, normed, None if experts is None else experts[:, :, index]
                )
                used.append(chosen)
            states = self._rounded(states + self._mlp(layer, normed, scores, chosen))
        hidden = self._norm(states, self.weights["model.norm.weight"])
        return hidden, torch.stack(used, dim=2).to(torch.uint8) if used else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H]."""
        return self._linear(hidden, self.weights["model.embed_tokens.weight"])

    def _rounded(self, result: Tensor) -> Tensor:
        return result if self._dtype is torch.float32 else result.to(self._dtype).float()

    def _linear(self, states: Tensor, weight: Tensor) -> Tensor:
        return self._rounded(functional.linear(states, weight))

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return self._rounded(functional.rms_norm(states, weight.shape, weight, self.shape.epsilon))

    def _attention(
        self,
        layer: _Layer,
        index: int,
        normed: Tensor,
        rotation: tuple[Tensor, Tensor],
        bias: Tensor,
        context: Context,
    ) -> Tensor:
        """Return what the heads saw, [B, S, heads * D]; the new keys and values are added to the context."""
        shape, (rows, new, _) = self.shape, normed.shape
        heads = self._linear(normed, layer.qkv).view(rows, new, -1, shape.head_size)
        turned, values = heads.split([shape.heads + shape.kv_heads, shape.kv_heads], dim=2)
        turned = self._rounded(
            functional.rms_norm(turned, (shape.head_size,), None, shape.epsilon) * layer.qk_norm
        )
        # Rotating halves: (a, b) -> (-b, a); the sign is in the sines.
        turned = self._rounded(
            turned * rotation[0] + turned.roll(shape.head_size // 2, dims=-1) * rotation[1]
        )
        queries, keys = turned.split([shape.heads, shape.kv_heads], dim=2)
        context.keys[index] = _append(context.keys[index], keys.transpose(1, 2))
        context.values[index] = _append(context.values[index], values.transpose(1, 2))
        # Queries that share keys stand in one row after another, so that the keys need not be repeated.
        group = shape.heads // shape.kv_heads
        packed = queries.view(rows, new, shape.kv_heads, group, shape.head_size).permute(0, 2, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            packed.reshape(rows, shape.kv_heads, group * new, shape.head_size),
            context.keys[index],
            context.values[index],
            attn_mask=bias,
        )
        seen = seen.view(rows, shape.kv_heads, group, new, shape.head_size).permute(0, 3, 1, 2, 4)
        return self._rounded(seen.reshape(rows, new, -1))

    def _route(self, router: Tensor, normed: Tensor, experts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight of every expert [B, S, experts], 0 for those not used, and the experts used [B, S, k]."""
        scores = torch.softmax(functional.linear(normed, router), dim=-1, dtype=torch.float32)
        chosen = scores.topk(self.shape.top_k, dim=-1).indices if experts is None else experts.long()
        weights = scores.gather(-1, chosen)
        if self.shape.normalize_top_k:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return torch.zeros_like(scores).scatter(-1, chosen, self._rounded(weights)), chosen

    def _mlp(self, layer: _Layer, normed: Tensor, scores: Tensor | None, chosen: Tensor | None) -> Tensor:
        """Return the MLP; in a mixture of experts the sum of the chosen experts, each times its score."""
        if scores is not None and chosen is not None and chosen[..., 0].numel() > WIDE_TOKENS:
            flat = self._by_expert(layer, normed.flatten(0, 1), scores.flatten(0, 1), chosen.flatten(0, 1))
            return flat.view_as(normed)
        both = self._linear(normed, layer.gate_up.flatten(0, 1)).unflatten(2, (-1, 2, self.shape.mlp))
        inner = functional.silu(both[:, :, :, 0]) * both[:, :, :, 1]
        if scores is not None:
            inner = inner * scores[..., None]
        return self._linear(self._rounded(inner).flatten(2), layer.down.flatten(1))

    def _by_expert(self, layer: _Layer, states: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
        """Return each expert for its own tokens; states [tokens, H], scores [tokens, experts], chosen [tokens, k]."""
        total = torch.zeros_like(states)
        for expert in range(self.shape.experts):
            own = (chosen == expert).any(dim=-1).nonzero()[:, 0]
            gate, up = self._linear(states[own], layer.gate_up[expert]).chunk(2, dim=-1)
            inner = self._rounded(functional.silu(gate) * up * scores[own, expert, None])
            total = total.index_add(0, own, functional.linear(inner, layer.down[:, expert]))
        return self._rounded(total)

    def _assembled(self) -> list[_Layer]:
        if self._layers is not None:
            return self._layers
        layers = [self._assemble(layer) for layer in range(self.shape.layers)]
        if not self.weights["model.norm.weight"].requires_grad:
            self._layers = layers
        return layers

    def _assemble(self, layer: int) -> _Layer:
        shape, name = self.shape, f"model.layers.{layer}."

        def weight(part: str) -> Tensor:
            return self.weights[f"{name}{part}.weight"]

        parts = shape.mlp_parts(layer)
        gate, up, down = (
            [self.weights[f"{part}{name}_proj.weight"] for part in parts] for name in ("gate", "up", "down")
        )
        q_norm, k_norm = weight("self_attn.q_norm"), weight("self_attn.k_norm")
        return _Layer(
            before_attention=weight("input_layernorm"),
            qkv=torch.cat([weight(f"self_attn.{part}_proj") for part in "qkv"]),
            qk_norm=torch.cat([q_norm.expand(shape.heads, -1), k_norm.expand(shape.kv_heads, -1)]),
            out=weight("self_attn.o_proj"),
            before_mlp=weight("post_attention_layernorm"),
            router=weight("mlp.gate") if shape.experts else None,
            gate_up=torch.cat([torch.stack(gate), torch.stack(up)], dim=1),
            down=torch.stack(down, dim=1),
        )


def _rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the rotary position embedding, [max positions, D]."""
    frequency = shape.rope_theta ** -(
        torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
    )
    angle = torch.arange(shape.max_positions, dtype=torch.float32)[:, None] * frequency
    sine = angle.sin()
    return torch.cat([angle.cos()] * 2, dim=1), torch.cat([-sine, sine], dim=1)


def _attention_bias(mask: Tensor, new: int, group: int) -> Tensor:
    """0 where a new token may look, else minus infinity, [B, 1, group * S, K]; every token may look at itself."""
    columns = torch.arange(mask.size(1))
    own = columns[-new:, None]
    seen = (mask[:, None, :] & (columns <= own)) | (columns == own)
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None].repeat(1, 1, group, 1)


def _append(used: Tensor, added: Tensor) -> Tensor:
    """`used` [B, heads, K, D] and `added` after it.

    Without gradients they are written into spare columns behind `used`, if the memory that it is a view of has some.
    """
    if torch.is_grad_enabled():
        return torch.cat([used, added], dim=2)
    before, after = used.size(2), used.size(2) + added.size(2)
    buffer: Any = used._base
    if buffer is None or buffer.dim() != 4 or buffer.size(2) < after or buffer.shape[:2] != used.shape[:2]:
        buffer = used.new_empty(used.size(0), used.size(1), after + SPARE_COLUMNS, used.size(3))
        buffer[:, :, :before] = used
    buffer[:, :, before:after] = added
    return buffer[:, :, :after]


def _read_weights(folder: Path, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    """Exactly the tensors that `shape` names. Raise UserError naming folder and tensor or file at fault."""
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}): write {folder} again") from None
    wanted = shape.tensors()
    for name in sorted({*wanted, *tensors}):
        if name not in tensors or name not in wanted or tuple(tensors[name].shape) != wanted[name]:
            found = tuple(tensors[name].shape) if name in tensors else "absent"
            raise UserError(
                f"{folder} does not fit in tensor {name}: it is {found}, expected {wanted.get(name, 'none')}"
            )
    return {name: tensors[name].to(dtype).float() for name in wanted}
