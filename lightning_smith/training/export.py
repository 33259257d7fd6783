"""A live checkpoint as a Hugging Face folder, and the proof that the folder is what was trained.

Importable anywhere; `export_checkpoint` and `verify_export` need PyTorch, transformers and safetensors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.errors import UserError
from lightning_smith.files import read_json
from lightning_smith.training.checkpoint import FILES, describe_files, fault

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
NOT_EXPORTED = frozenset({"optimizer.pt", "state.json", FILES})

GREEDY_TOKENS = 24
"""Length of the answers that export and checkpoint must agree in."""

Messages = list[dict[str, str]]


# ------------------------------------------------------------------------- the tied head, by itself


@dataclass(frozen=True)
class HeadFacts:
    """What a folder says about its output head.

    `top` and `text` are `tie_word_embeddings` at the top of config.json and in its `text_config` (None where
    absent); `head` says whether the weights hold `lm_head.weight`, `equal` whether it equals the embeddings.
    """

    top: bool | None
    text: bool | None
    head: bool
    equal: bool | None

    def __str__(self) -> str:
        return (
            f"tie_word_embeddings {self.top} at the top and {self.text} in text_config, "
            f"{HEAD} {'there' if self.head else 'absent'}"
        )


def head_fault(start: HeadFacts, export: HeadFacts) -> str | None:
    """Why an export's head cannot be trusted, None if it can.

    The two levels of a composite configuration must be as before training and must not contradict each other:
    a loader that believes the wrong one drops a trained head or ties two different ones, and says nothing.
    """
    if (export.top, export.text) != (start.top, start.text):
        return f"the export has {export}, the model before training {start}"
    said = {value for value in (export.top, export.text) if value is not None}
    if len(said) == 2:
        return f"the two levels of the configuration contradict each other: {export}"
    tied = said == {True}
    if not tied and start.head and not export.head:
        return f"{HEAD} is missing, and the head is not tied to the embeddings: {export}"
    if tied and export.head and export.equal is False:
        return f"the head is tied to the embeddings, and the weights hold another one: {export}"
    return None


# ------------------------------------------------------------------------------------------- export


def export_checkpoint(
    checkpoint: Path, start: Path, export: Path, prompts: Sequence[Messages]
) -> dict[str, Any]:
    """Write the Hugging Face folder `export` from a whole live checkpoint and verify it.

    Args:
        checkpoint: folder of a live checkpoint.
        start: Hugging Face folder of the policy before training.
        export: appears whole and verified, or not at all.
        prompts: conversations that export and checkpoint must continue with the same tokens.

    Returns files, tensor counts and what was compared. Raises UserError naming the file or tensor at fault.
    """
    if reason := fault(checkpoint):
        raise UserError(f"{checkpoint} is no whole checkpoint: {reason}; train it again")
    partial = export.with_name(f".{export.name}.partial.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for path in sorted(checkpoint.iterdir()):
            if path.is_file() and path.name not in NOT_EXPORTED:
                shutil.copyfile(path, partial / path.name)
        proof = verify_export(partial, checkpoint, start, prompts)
        shutil.rmtree(export, ignore_errors=True)
        partial.rename(export)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"files": describe_files(export), **proof}


def verify_export(export: Path, checkpoint: Path, start: Path, prompts: Sequence[Messages]) -> dict[str, Any]:
    """Compare an export with the checkpoint it is of and the policy before training.

    Checked: names and shapes of all tensors as before training, their dtype as config.json says, every
    number finite and as in the checkpoint, at least one tensor changed by training, the output head, chat
    template and end tokens as before training, loading by AutoModelForCausalLM without a tensor missing or
    left over, and the same greedy answers to `prompts`, token by token, as the checkpoint.

    Raises UserError naming the first thing that is not so.
    """
    from safetensors.torch import load_file

    exported, trained, before = (_read_tensors(load_file, folder) for folder in (export, checkpoint, start))
    _compare_shapes(export, exported, before)
    config = read_json(export / "config.json")
    _check_dtype(export, exported, config)
    changed = _compare_values(export, exported, trained, before)
    if reason := head_fault(head_facts(start, before), head_facts(export, exported)):
        raise UserError(f"{export}: {reason}")
    _compare_texts(export, start)
    answers = _compare_answers(export, checkpoint, prompts)
    return {
        "tensors": len(exported),
        "parameters": sum(tensor.numel() for tensor in exported.values()),
        "dtype": config["dtype"],
        "changed_tensors": changed,
        "changed_fraction": round(changed / len(exported), 6),
        "greedy_prompts": len(answers),
        "greedy_tokens": sum(len(answer) for answer in answers),
    }


def head_facts(folder: Path, tensors: dict[str, Any]) -> HeadFacts:
    """Read what a folder says about its head; `tensors` are its weights by name."""
    config = read_json(folder / "config.json")
    embeddings = next(
        (value for name, value in tensors.items() if name.endswith("embed_tokens.weight")), None
    )
    head = next((value for name, value in tensors.items() if name.endswith(HEAD)), None)
    equal = None if head is None or embeddings is None else bool(head.equal(embeddings))
    text = config.get("text_config") or {}
    return HeadFacts(
        config.get("tie_word_embeddings"), text.get("tie_word_embeddings"), head is not None, equal
    )


def _read_tensors(load_file: Any, folder: Path) -> dict[str, Any]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{folder} lacks {WEIGHTS}: export the checkpoint again")
    try:
        return load_file(path)
    except Exception as error:
        raise UserError(f"{path} is not a readable safetensors file ({error})") from None


def _compare_shapes(export: Path, exported: dict[str, Any], before: dict[str, Any]) -> None:
    for name in sorted(set(before) - set(exported)):
        raise UserError(f"{export}: tensor {name} is missing")
    for name in sorted(set(exported) - set(before)):
        raise UserError(f"{export}: tensor {name} is not in the model before training")
    for name, tensor in exported.items():
        if tensor.shape != before[name].shape:
            shapes = f"{tuple(tensor.shape)} instead of {tuple(before[name].shape)}"
            raise UserError(f"{export}: tensor {name} has shape {shapes}")


def _check_dtype(export: Path, exported: dict[str, Any], config: dict[str, Any]) -> None:
    for name, tensor in exported.items():
        if str(tensor.dtype) != f"torch.{config['dtype']}":
            raise UserError(
                f"{export}: tensor {name} is of {tensor.dtype}, config.json says {config['dtype']}"
            )


def _compare_values(
    export: Path, exported: dict[str, Any], trained: dict[str, Any], before: dict[str, Any]
) -> int:
    """Number of tensors that training changed; raises UserError for one that differs from the checkpoint."""
    changed = 0
    for name, tensor in exported.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{export}: tensor {name} holds a number that is not finite")
        if name not in trained or not tensor.equal(trained[name]):
            raise UserError(f"{export}: tensor {name} is not the one of the checkpoint")
        changed += not tensor.float().equal(before[name].float())
    if not changed:
        raise UserError(f"{export}: no tensor differs from the model before training: nothing was learnt")
    return changed


def _compare_texts(export: Path, start: Path) -> None:
    """Chat template and end tokens are as before training."""

    def facts(folder: Path) -> dict[str, Any]:
        template = folder / "chat_template.jinja"
        generation = folder / "generation_config.json"
        return {
            "chat_template.jinja": template.read_text(encoding="utf-8") if template.is_file() else None,
            "eos_token_id": read_json(generation).get("eos_token_id") if generation.is_file() else None,
        }

    for name, value in facts(export).items():
        if value != facts(start)[name]:
            raise UserError(f"{export}: {name} is not that of the model before training")


def _compare_answers(export: Path, checkpoint: Path, prompts: Sequence[Messages]) -> list[list[int]]:
    """Greedy answers of both; raises UserError naming the first prompt in which they part."""
    answers = [_greedy_answers(folder, prompts) for folder in (export, checkpoint)]
    for number, (one, other) in enumerate(zip(*answers, strict=True), start=1):
        if one != other:
            position = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other)
            )
            raise UserError(
                f"{export}: its answer to prompt {number} parts from the checkpoint's at token {position}"
            )
    return answers[0]


def _greedy_answers(folder: Path, prompts: Sequence[Messages]) -> list[list[int]]:
    """The likeliest token after the likeliest token, up to `GREEDY_TOKENS`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lightning_smith.training.weights import read_weights

    read_weights(folder, torch.float32)  # refuses a folder with a missing or surplus tensor
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    stop = model.generation_config.eos_token_id
    ends = {stop} if isinstance(stop, int) else set(stop or ())
    answers = []
    for messages in prompts:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        tokens: list[int] = []
        while len(tokens) < GREEDY_TOKENS and not (tokens and tokens[-1] in ends):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
        answers.append(tokens)
    return answers
