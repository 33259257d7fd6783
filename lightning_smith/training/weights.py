"""Weights of Hugging Face folders: all of them or an error. Needs PyTorch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lightning_smith.errors import UserError


def load_weights(model: Any, folder: Path | str) -> None:
    """Copy the weights of a Hugging Face folder into `model`, in the model's own dtype, all or none.

    Raises UserError naming the folder and the first tensor that is missing, unknown or of another shape.
    """
    tensors = read_weights(folder, model.dtype)
    own = model.state_dict()
    for name in [*own, *tensors]:
        if name not in tensors or name not in own or tensors[name].shape != own[name].shape:
            raise UserError(
                f"{folder} does not fit the loaded model in tensor {name}: no weights were loaded"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def read_weights(folder: Path | str, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a Hugging Face folder under the model's own names (a tied head included).

    Raises UserError if a file is absent or unreadable, or a tensor that config.json promises is not there:
    transformers itself would only warn and start that tensor at random.
    """
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} lacks {name}: write the checkpoint again")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except Exception as error:
        raise UserError(
            f"{folder} cannot be loaded ({type(error).__name__}: {error}): write it again"
        ) from None
    model, report = loaded
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        for key in sorted(report[fault], key=str):
            name = key if isinstance(key, str) else key[0]
            raise UserError(f"{folder}: tensor {name} is {fault.removesuffix('_keys')} in model.safetensors")
    return model.state_dict()
