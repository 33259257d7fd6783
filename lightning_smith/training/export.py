"""A live checkpoint as a Hugging Face folder, and the proof that the folder is what was trained.

Importable anywhere; `export_checkpoint` and `verify_export` need PyTorch, transformers and safetensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.training.checkpoint import FILES, describe_files, fault

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
NOT_EXPORTED = frozenset({"optimizer.pt", "state.json", FILES})
TOKENIZER_CONFIG = "tokenizer_config.json"
EXPORTED = frozenset(
    {
        WEIGHTS,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        TOKENIZER_CONFIG,
        "special_tokens_map.json",
        "chat_template.jinja",
    }
)
"""What a policy's folder is made of. Loaders look for adapters, shards and indices of their own accord."""

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
    """Return why an export's head cannot be trusted, None if it can.

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

    Returns files, tensor counts and what was compared. Raise UserError naming the file or tensor at fault.
    """
    if reason := fault(checkpoint):
        raise UserError(f"{checkpoint} is no whole checkpoint: {reason}; train it again")
    partial = export.with_name(f".{export.name}.partial")
    for left in export.parent.glob(f"{partial.name}*"):  # of killed attempts
        shutil.rmtree(left)
    partial.mkdir(parents=True)
    try:
        for path in sorted(checkpoint.iterdir()):
            if path.is_file() and path.name not in NOT_EXPORTED:
                shutil.copyfile(path, partial / path.name)
        make_portable(partial)
        proof = verify_export(partial, checkpoint, start, prompts)
        shutil.rmtree(export, ignore_errors=True)
        partial.rename(export)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"files": describe_files(export), **proof}


def require_export(manifest: Path, folder: Path) -> None:
    """Raise UserError naming the first file of an export that is not the one its manifest lists, or is not listed."""
    remedy = f"delete {manifest} and run the same command again, which exports the checkpoint anew"
    about = read_json(manifest)
    promised = about.get("files") if isinstance(about, dict) else None
    if not isinstance(promised, dict) or not promised:
        raise UserError(f"{manifest} lists no files, so it is no manifest of an export: {remedy}")
    found = describe_files(folder) if folder.is_dir() else {}
    for name in sorted({*promised, *found}):
        if name not in found:
            raise UserError(f"{folder / name} is missing, and {manifest} lists it: {remedy}")
        if name not in promised:
            raise UserError(
                f"{folder / name} is a stray, {manifest} does not list it: remove it, or {remedy}"
            )
        if found[name] != promised[name]:
            raise UserError(f"{folder / name} has another sha256 than {manifest} says: {remedy}")


def make_portable(folder: Path) -> None:
    """Say in a folder's texts, for transformers 4.57, what transformers 5 writes under other names.

    The class TokenizersBackend does not exist there, and it would take its own defaults for the number of experts
    and the base of the rotary embedding. Where the tokenizer was loaded from is left out.
    """
    path = folder / TOKENIZER_CONFIG
    if path.is_file():
        left_out = ("backend", "is_local", "local_files_only")
        settings = {key: value for key, value in read_json(path).items() if key not in left_out}
        write_json(path, settings | {"tokenizer_class": _declared_class(folder)})
    config = read_json(folder / "config.json")
    older = {
        "num_experts": config.get("num_local_experts"),
        "rope_theta": (config.get("rope_parameters") or {}).get("rope_theta"),
    }
    write_json(
        folder / "config.json", {key: value for key, value in older.items() if value is not None} | config
    )


def _declared_class(folder: Path) -> str | None:
    """Return the class that the folder's tokenizer asks for, by the name that transformers 4 knows as well."""
    path = folder / TOKENIZER_CONFIG
    declared = read_json(path).get("tokenizer_class") if path.is_file() else None
    return "PreTrainedTokenizerFast" if declared == "TokenizersBackend" else declared


def verify_export(export: Path, checkpoint: Path, start: Path, prompts: Sequence[Messages]) -> dict[str, Any]:
    """Compare an export with the checkpoint it is of and the policy before training.

    Checked: names and shapes of all tensors as before training, their dtype as config.json says, every
    number finite and as in the checkpoint, at least one tensor changed by training, the output head, end tokens
    and all that the tokenizer does as before training, no stray file, loading by AutoModelForCausalLM without a
    tensor missing or left over, and the same greedy answers to `prompts`, token by token, as the checkpoint.

    Raise UserError naming the first thing that is not so.
    """
    from safetensors.torch import load_file

    _refuse_strays(export)
    exported, trained, before = (_read_tensors(load_file, folder) for folder in (export, checkpoint, start))
    _compare_shapes(export, exported, before)
    config = read_json(export / "config.json")
    _check_dtype(export, exported, config)
    changed = _compare_values(export, exported, trained, before)
    if reason := head_fault(head_facts(start, before), head_facts(export, exported)):
        raise UserError(f"{export}: {reason}")
    _compare_end_tokens(export, start)
    _compare_tokenizers(export, start, prompts)
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
    """Return the number of tensors that training changed. Raise UserError for one that differs from the checkpoint."""
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


def _refuse_strays(export: Path) -> None:
    for path in sorted(export.rglob("*")):
        name = path.relative_to(export).as_posix()
        if path.is_file() and name not in EXPORTED:
            raise UserError(
                f"{export}: {name} is a stray, which a loader may take for a part of the policy: remove it from the "
                "checkpoint and train it again"
            )


def _compare_end_tokens(export: Path, start: Path) -> None:
    def end_tokens(folder: Path) -> Any:
        generation = folder / "generation_config.json"
        return read_json(generation).get("eos_token_id") if generation.is_file() else None

    if end_tokens(export) != end_tokens(start):
        raise UserError(f"{export}: eos_token_id is not that of the model before training")


def _compare_tokenizers(export: Path, start: Path, prompts: Sequence[Messages]) -> None:
    """Raise UserError naming the first thing that the two tokenizers, as transformers loads them, do differently."""
    ours, before = (_tokenizer_facts(folder, prompts) for folder in (export, start))
    for name, value in before.items():
        if ours.get(name) != value:
            raise UserError(f"{export}: {name} of its tokenizer is not that of the model before training")


_ODD_TEXTS = (
    "def f(x):\n\treturn x  != 10**3  # caf\u00e9 \u4f60\u597d \U0001f600\n",
    "  \r\n<|im_start|>user\n<|im_end|><|endoftext|>",
    "",
)
"""Blanks, digits, characters outside ASCII, special tokens in a text, and nothing."""


def _tokenizer_facts(folder: Path, prompts: Sequence[Messages]) -> dict[str, Any]:
    """Return what decides what a tokenizer does, and what it makes of prompts and odd texts."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise UserError(
            f"{folder}: its tokenizer cannot be loaded ({type(error).__name__}: {error})"
        ) from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    pipeline = json.loads(backend.to_str()) if backend is not None else {}
    special = {
        name: [str(token), tokenizer.convert_tokens_to_ids(str(token))]
        for name, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str)
    }
    texts = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for messages in prompts
    ]
    tokens = [tokenizer.encode(text) for text in (*texts, *_ODD_TEXTS)]
    return {
        "the class": [_declared_class(folder), type(tokenizer).__name__],
        "the padding side": tokenizer.padding_side,
        "the truncation side": tokenizer.truncation_side,
        "the longest input": tokenizer.model_max_length,
        "the chat template": tokenizer.chat_template,
        "the special tokens": [special, sorted(tokenizer.all_special_ids)],
        "the vocabulary": tokenizer.get_vocab(),
        **{f"the {part}": pipeline[part] for part in sorted(pipeline) if part not in ("version", "model")},
        "the model": pipeline.get("model"),
        "the conversations": texts,
        "the tokens": tokens,
        "the decoded text": [tokenizer.decode(one) for one in tokens],
    }


def _compare_answers(export: Path, checkpoint: Path, prompts: Sequence[Messages]) -> list[list[int]]:
    """Greedy answers of both. Raise UserError naming the first prompt in which they part."""
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
    """Return the likeliest token after the likeliest token, up to `GREEDY_TOKENS`."""
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
