"""Weights of Hugging Face folders: all of them or an error. Needs PyTorch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lightning_smith.core.errors import UserError


def read_weights(folder: Path | str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return all tensors of a Hugging Face folder under the model's own names (a tied head included).

    Raise UserError if a file is absent or unreadable, or a tensor that config.json promises is not there:
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
