"""Supervised warm start of the tiny policy, from random weights, by steps alone.

The stages, in order (`DENSE_STAGES`):

- `format`: whole conversations, every position weighs alike among the replies;
- `copying`: repeated random strings, until the attention heads that copy have formed. Paths and line
  numbers must be copied from the prompt, and demonstrations alone do not teach it;
- `joining`, `settling`: demonstrations again;
- `choosing`: the line number weighs five times and the replacement three times what the rest of the
  edit does, the prompt almost nothing. Without that the policy copies well and picks the wrong line;
- `doubting`: half of the demonstrations show another edit of the same kind in the same window. It leaves
  the policy unsure enough for reinforcement learning to have something to sharpen.

A stage ends after a fixed number of steps, never by the clock (the copying stage also when its loss is
low). Every step draws its examples from its own random stream, so a run that was killed goes on from its
last checkpoint as if nothing had happened. On a CPU the same number of threads and versions give the same
weights; another processor or a GPU rounds differently, and after a few hundred steps the weights differ.
"""

from __future__ import annotations

import math
import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch.nn.functional import cross_entropy

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, read_json, sha256_file, write_json
from lightning_smith.core.progress import Progress
from lightning_smith.miniature.policy.conversation import (
    SUBMIT_COMMAND,
    Edit,
    EditTask,
    numbered_lines,
    render_observation,
    render_reply,
    sed_parts,
    view_command,
    view_prompt,
)
from lightning_smith.miniature.policy.demonstrations import Demonstrations, draw_edit, whole_conversation
from lightning_smith.miniature.policy.model import (
    build_model,
    count_parameters,
    encode,
    load_policy,
    save_policy,
    train_tokenizer,
)

MODEL_SEED = 0
TOKENIZER_CONVERSATIONS = 6000
SUBMIT_SHARE = 0.3
"""Share of the examples that go on to the third turn, which is learnt in no time."""
CHECKPOINT_EVERY = 100
"""Steps between checkpoints of a stage."""
MAX_WEIGHTS_BYTES = 4_000_000
COPY_LENGTH = 96
COPY_PERIODS = (12, 16, 24, 32)
COPY_BATCH = 64


@dataclass(frozen=True)
class Stage:
    """One stage of a warm start.

    learning_rate is the peak, reached after `warmup_steps`; demonstrations then follow a cosine down to a
    twentieth of it, copying stays at the peak. The weights multiply the loss of prompt tokens (`context`),
    of the commands that only copy (`copied`: view and submit) and of the edit's line number (`line`); the
    rest of the edit weighs 1 and its replacement halfway between 1 and `line`.
    `stop_below`: the loss at which the copying stage ends early.
    """

    name: str
    task: Literal["demonstrations", "copying"]
    steps: int
    seed: int
    learning_rate: float = 2e-3
    warmup_steps: int = 40
    batch: int = 32
    correct_share: float = 1.0
    context_weight: float = 0.1
    copied_weight: float = 0.5
    line_weight: float = 1.0
    stop_below: float = 0.0

    @property
    def replacement_weight(self) -> float:
        """Weight of the edit's replacement."""
        return (1 + self.line_weight) / 2


_CHOOSING: dict[str, Any] = {"context_weight": 0.03, "copied_weight": 0.3, "line_weight": 5.0}

DENSE_STAGES = (
    Stage("format", "demonstrations", steps=400, seed=11),
    Stage("copying", "copying", steps=350, seed=12, warmup_steps=20, batch=COPY_BATCH, stop_below=0.3),
    Stage("joining", "demonstrations", steps=200, seed=12),
    Stage("settling", "demonstrations", steps=300, seed=13),
    Stage("choosing", "demonstrations", steps=600, seed=14, warmup_steps=15, **_CHOOSING),
    Stage(
        "doubting",
        "demonstrations",
        steps=80,
        seed=15,
        learning_rate=1e-3,
        warmup_steps=10,
        correct_share=0.5,
        **_CHOOSING,
    ),
)

MOE_STAGES = (
    Stage(
        "doubting",
        "demonstrations",
        steps=113,
        seed=16,
        learning_rate=1e-3,
        warmup_steps=10,
        correct_share=0.5,
        **_CHOOSING,
    ),
)
"""The MoE starts from the dense policy before it was made to doubt (see `mini.upcycle`)."""


# --------------------------------------------------------------------------------- examples, losses


Segments = list[tuple[str, float]]


def weighted_segments(task: EditTask, edit: Edit, stage: Stage, submit: bool) -> Segments:
    """Return the conversation in pieces with the weight of their tokens in the loss."""
    opening, line, replacement, rest = sed_parts(task.path, edit)
    before, after = render_reply("\0").split("\0")
    segments = [
        (view_prompt(task), stage.context_weight),
        (render_reply(view_command(task.path, task.first, task.last)), stage.copied_weight),
        (render_observation(0, numbered_lines(task.first, task.lines)), stage.context_weight),
        (before + opening, 1.0),
        (line, stage.line_weight),
        (replacement, stage.replacement_weight),
        (rest + after, 1.0),
    ]
    if submit:
        segments.append((render_observation(0, ""), stage.context_weight))
        segments.append((render_reply(SUBMIT_COMMAND), stage.copied_weight))
    return segments


Example = tuple[list[int], list[float], list[bool]]


def draw_example(demonstrations: Demonstrations, tokenizer: Any, stage: Stage, rng: random.Random) -> Example:
    """Token ids, loss weights and which tokens belong to the edit, all of one length."""
    task = demonstrations.draw(rng)
    edit = draw_edit(task, stage.correct_share, rng)
    ids: list[int] = []
    weights: list[float] = []
    in_edit: list[bool] = []
    segments = weighted_segments(task, edit, stage, submit=rng.random() < SUBMIT_SHARE)
    for position, (text, weight) in enumerate(segments):
        piece = encode(tokenizer, text)
        ids += piece
        weights += [weight] * len(piece)
        in_edit += [3 <= position <= 6] * len(piece)
    return ids, weights, in_edit


def demonstration_loss(model: Any, examples: Sequence[Example]) -> tuple[float, float]:
    """Accumulate gradients of the weighted mean loss of a batch.

    Returns that loss and the plain mean loss of the edit's tokens, both in nats a token. The batch is
    computed in two halves of similar length, which saves padding.
    """
    ordered = sorted(examples, key=lambda example: len(example[0]))
    total_weight = sum(sum(weights[1:]) for _, weights, _ in ordered)
    edit_tokens = sum(sum(in_edit) for _, _, in_edit in ordered)
    loss_sum = edit_sum = 0.0
    half = len(ordered) // 2
    for part in (ordered[:half], ordered[half:]):
        width = max(len(ids) for ids, _, _ in part)
        ids = torch.zeros(len(part), width, dtype=torch.long)
        weights = torch.zeros(len(part), width)
        in_edit = torch.zeros(len(part), width)
        for row, (row_ids, row_weights, row_edit) in enumerate(part):
            ids[row, : len(row_ids)] = torch.tensor(row_ids)
            weights[row, : len(row_ids)] = torch.tensor(row_weights)
            in_edit[row, : len(row_ids)] = torch.tensor(row_edit, dtype=torch.float32)
        ids, weights, in_edit = ids.to(model.device), weights.to(model.device), in_edit.to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        losses = _token_losses(logits, ids[:, 1:])
        loss = (losses * weights[:, 1:]).sum() / total_weight
        loss.backward()
        loss_sum += loss.item()
        edit_sum += float((losses.detach() * in_edit[:, 1:]).sum())
    return loss_sum, edit_sum / edit_tokens


def copying_loss(model: Any, vocabulary: int, batch: int, rng: random.Random) -> float:
    """Accumulate gradients of the loss on the repetitions of random strings; returns it in nats a token."""
    period = rng.choice(COPY_PERIODS)
    lead = rng.randrange(8)
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    unit = torch.randint(3, vocabulary, (batch, period), generator=generator)
    repeated = unit.repeat(1, COPY_LENGTH // period + 1)[:, :COPY_LENGTH]
    ids = torch.cat([torch.randint(3, vocabulary, (batch, lead), generator=generator), repeated], 1)
    ids = ids.to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits
    start = lead + period
    loss = _token_losses(logits[:, start - 1 : -1], ids[:, start:]).mean()
    loss.backward()
    return loss.item()


def _token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    flat = cross_entropy(logits.reshape(-1, logits.size(-1)).float(), targets.reshape(-1), reduction="none")
    return flat.view(targets.shape)


def learning_rate(stage: Stage, step: int) -> float:
    """Rate of step `step` (from 0): linear warm-up, then a cosine to a twentieth; constant for copying."""
    warm = min(1.0, (step + 1) / stage.warmup_steps)
    if stage.task == "copying":
        return stage.learning_rate * warm
    cosine = 0.5 * (1 + math.cos(math.pi * step / stage.steps))
    return stage.learning_rate * warm * (0.05 + 0.95 * cosine)


def build_optimizers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, AdamW for embeddings, norms and stacked experts."""
    named = list(model.named_parameters())
    matrices = [parameter for name, parameter in named if parameter.ndim == 2 and "embed" not in name]
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for _, parameter in named if id(parameter) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


# ------------------------------------------------------------------------------------------- stages


def run_stage(
    model: Any,
    tokenizer: Any,
    demonstrations: Demonstrations,
    stage: Stage,
    checkpoint: Path,
    key: str,
) -> dict[str, Any]:
    """Train `model` in place through one stage, going on from `checkpoint` if there is one of this `key`.

    Returns what the recipe records: steps, first and last loss (mean of up to 25 steps), seconds.
    """
    optimizers = build_optimizers(model, stage.learning_rate)
    losses: list[float] = []
    seconds = 0.0
    state = torch.load(checkpoint, weights_only=True) if checkpoint.is_file() else {}
    if state.get("key") == key:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        losses, seconds = state["losses"], state["seconds"]
    progress = Progress(stage.name, stage.steps, unit="steps", done=len(losses), every_s=15)
    model.train()
    started = time.monotonic() - seconds
    for step in range(len(losses), stage.steps):
        rate = learning_rate(stage, step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
        rng = random.Random(f"{stage.seed}/{stage.task}/{step}")
        if stage.task == "copying":
            loss = copying_loss(model, len(tokenizer), stage.batch, rng)
        else:
            examples = [draw_example(demonstrations, tokenizer, stage, rng) for _ in range(stage.batch)]
            _, loss = demonstration_loss(model, examples)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss)
        progress.step(loss=loss)
        if loss < stage.stop_below:
            break
        if (step + 1) % CHECKPOINT_EVERY == 0:
            _save_checkpoint(checkpoint, key, model, optimizers, losses, time.monotonic() - started)
    progress.close()
    model.eval()
    return {
        "steps": len(losses),
        "first_loss": round(_mean(losses[:25]), 4),
        "last_loss": round(_mean(losses[-25:]), 4),
        "seconds": round(time.monotonic() - started, 1),
    }


def _save_checkpoint(
    path: Path,
    key: str,
    model: Any,
    optimizers: Sequence[torch.optim.Optimizer],
    losses: list[float],
    seconds: float,
) -> None:
    state = {
        "key": key,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "losses": losses,
        "seconds": seconds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    torch.save(state, partial)
    partial.replace(path)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@dataclass
class WarmStart:
    """A chain of stages, each finished one kept in `<work>/<number>-<name>/`.

    `start` makes the policy that the first stage trains; `origin` names everything that policy depends
    on. A stage whose folder records the same settings, demonstrations, device and predecessors is not
    trained again.
    """

    stages: Sequence[Stage]
    start: Callable[[], tuple[Any, Any]]
    origin: dict[str, Any]
    demonstrations_file: Path
    work: Path
    device: str = "cpu"

    def run(self) -> tuple[Any, Any, dict[str, Any]]:
        """Train what is missing; returns the last stage's model (on the CPU), tokenizer and recipe."""
        if self.device != "cpu":
            # Without it cuBLAS is not deterministic.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        source = sha256_file(self.demonstrations_file)
        recipe = {
            "origin": self.origin,
            "demonstrations_sha256": source,
            "device": describe_device(self.device),
        }
        key = hash_json(recipe)
        records: list[dict[str, Any]] = []
        previous: Path | None = None
        for number, stage in enumerate(self.stages):
            key = hash_json({"after": key, "stage": asdict(stage)})
            folder = self.work / f"{number}-{stage.name}"
            record_file = folder / "stage.json"
            if not record_file.is_file() or read_json(record_file)["key"] != key:
                self._train(stage, folder, previous, key)
            records.append({name: value for name, value in read_json(record_file).items() if name != "key"})
            previous = folder
        if previous is None:
            raise UserError("a warm start needs at least one stage")
        model, tokenizer = load_policy(previous)
        return model, tokenizer, {**recipe, "stages": records, "versions": versions()}

    def _train(self, stage: Stage, folder: Path, previous: Path | None, key: str) -> None:
        demonstrations = Demonstrations.read(self.demonstrations_file)
        model, tokenizer = load_policy(previous) if previous else self.start()
        model.to(self.device)
        checkpoint = self.work / f"{folder.name}.checkpoint.pt"
        figures = run_stage(model, tokenizer, demonstrations, stage, checkpoint, key)
        save_policy(model.cpu(), tokenizer, folder)
        weights = sha256_file(folder / "model.safetensors")
        record = {"settings": asdict(stage), **figures, "weights_sha256": weights, "key": key}
        write_json(folder / "stage.json", record)
        checkpoint.unlink(missing_ok=True)


def train_dense(demonstrations_file: Path, out: Path, work: Path, device: str = "cpu") -> None:
    """The dense warm start: train `DENSE_STAGES` from random weights; policy and recipe go to `out`."""
    chain = WarmStart(
        stages=DENSE_STAGES,
        start=lambda: random_policy(demonstrations_file),
        origin={"kind": "dense", "seed": MODEL_SEED, "tokenizer_conversations": TOKENIZER_CONVERSATIONS},
        demonstrations_file=demonstrations_file,
        work=work,
        device=device,
    )
    publish(*chain.run(), out, torch.float32)


def publish(model: Any, tokenizer: Any, recipe: dict[str, Any], out: Path, dtype: torch.dtype) -> None:
    """Write a warm start's policy folder and its recipe.json; a UserError if its weights exceed 4 MB."""
    save_policy(model, tokenizer, out, dtype)
    weights = out / "model.safetensors"
    size = weights.stat().st_size
    if size > MAX_WEIGHTS_BYTES:
        raise UserError(f"{weights} has {size} bytes: the repository takes at most {MAX_WEIGHTS_BYTES}")
    about_files = {
        "parameters": count_parameters(model),
        "dtype": str(dtype).removeprefix("torch."),
        "weights_sha256": sha256_file(weights),
        "tokenizer_sha256": sha256_file(out / "tokenizer.json"),
    }
    write_json(out / "recipe.json", {**recipe, **about_files})


def describe_device(device: str) -> str:
    """Return what the weights were computed on: `cpu, 1 thread` or the accelerator's name."""
    if device == "cpu":
        return f"cpu, {torch.get_num_threads()} thread(s)"
    return f"{device}, {torch.cuda.get_device_name(device)}"


def random_policy(demonstrations_file: Path) -> tuple[Any, Any]:
    """Return a dense policy with random weights and a tokenizer trained on conversations."""
    demonstrations = Demonstrations.read(demonstrations_file)
    rng = random.Random(MODEL_SEED)
    texts = (whole_conversation(demonstrations.draw(rng)) for _ in range(TOKENIZER_CONVERSATIONS))
    return build_model("dense", MODEL_SEED), train_tokenizer(texts)


def versions() -> dict[str, str]:
    """Versions that the weights depend on."""
    import safetensors
    import tokenizers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
    }
