"""The miniature's policy: its tokenizer, the two tiny Qwen3 models, loading and saving.

Runs in `envs/mini` (PyTorch, transformers).
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.policy.conversation import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    SPECIAL_TOKENS,
    TURN_END,
    TURN_START,
)

VOCABULARY = 1024
HIDDEN = 128
LAYERS = 4
HEADS = 4
DENSE_MLP = 3 * HIDDEN
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
EXPERT_MLP = HIDDEN
MAX_POSITIONS = 1024

Kind = Literal["dense", "moe"]

transformers.utils.logging.disable_progress_bar()

_OPERATOR_TOKENS = r" (?:==|!=|<=|>=|\*\*|//|[-+*/%<>=]|\\\*\\\*|\\\*|and|or|is not|is|not in|in) "
_PIECES = _OPERATOR_TOKENS + r"|[A-Za-z]+|[0-9]{1,2}| +|\n+|[^A-Za-z0-9 \n]"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of `VOCABULARY` tokens trained on conversations.

    An operator with its two blanks is one piece, so that choosing an operator is choosing one token;
    numbers are cut in pieces of one or two digits; words are never joined with what surrounds them.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain = (text.replace(TURN_START, "").replace(TURN_END, "") for text in texts)
    core.train_from_iterator(plain, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a conversation text, whose special tokens stand in the text itself."""
    return tokenizer.encode(text, add_special_tokens=False)


def build_model(kind: Kind, seed: int = 0) -> torch.nn.Module:
    """Return a fp32 model with random weights that depend on the seed alone.

    dense: 0.92 million parameters; moe: 1.91 million, 8 experts of which 2 a token. Embeddings are tied.
    """
    torch.manual_seed(seed)
    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "head_dim": HIDDEN // HEADS,
        "intermediate_size": DENSE_MLP,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "initializer_range": 0.05,
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index(TURN_END),
        "pad_token_id": SPECIAL_TOKENS.index(END_OF_TEXT),
    }
    if kind == "dense":
        return Qwen3ForCausalLM(Qwen3Config(**shared)).float()
    config = Qwen3MoeConfig(
        moe_intermediate_size=EXPERT_MLP,
        num_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        router_aux_loss_coef=0.0,
        **shared,
    )
    return Qwen3MoeForCausalLM(config).float()


def load_policy(
    folder: Path | str, dtype: torch.dtype = torch.float32
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Model (in evaluation mode, weights as `dtype`) and tokenizer of a folder that `save_policy` wrote.

    Works for dense and MoE alike: config.json says which. Nothing is fetched from the network.
    """
    folder = Path(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} lacks {name}: it is not a policy folder (scripts/miniature/make_warm_start.py makes one)"
            )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = "left"
    model.eval()
    return model, tokenizer


def save_policy(model: Any, tokenizer: Any, folder: Path | str, dtype: torch.dtype = torch.float32) -> None:
    """Write config, weights (as `dtype`) and tokenizer in Hugging Face form.

    The folder appears whole or not at all; one that exists is replaced.
    """
    folder = Path(folder)
    partial = folder.with_name(f".{folder.name}.partial.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    copy.deepcopy(model).to(dtype).save_pretrained(partial)
    (partial / "model.safetensors").chmod(0o644)  # safetensors makes it private
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of distinct weights; tied embeddings count once."""
    return sum(parameter.numel() for parameter in model.parameters())
