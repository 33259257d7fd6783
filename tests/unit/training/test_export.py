"""Exports that are what was trained, and what is wrong with those that are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.training.checkpoint import write_checkpoint
from lightning_smith.training.export import (
    HeadFacts,
    export_checkpoint,
    head_fault,
    require_export,
    verify_export,
)

TIED = HeadFacts(top=True, text=True, head=False, equal=None)
UNTIED = HeadFacts(top=None, text=False, head=True, equal=False)


@pytest.mark.parametrize(
    ("start", "export", "words"),
    [
        (UNTIED, HeadFacts(True, False, True, False), ["True at the top", "None at the top"]),
        (UNTIED, HeadFacts(None, False, False, None), ["lm_head.weight is missing"]),
        (TIED, TIED, None),
        (TIED, HeadFacts(True, True, True, False), ["tied", "another one"]),
        (TIED, HeadFacts(False, True, False, None), ["False at the top", "True at the top"]),
        (UNTIED, UNTIED, None),
        (HeadFacts(True, None, False, None), HeadFacts(True, None, True, True), None),
    ],
)
def test_two_levels_of_configuration_and_the_head(
    start: HeadFacts, export: HeadFacts, words: list[str] | None
):
    found = head_fault(start, export)
    if words is None:
        assert found is None
    else:
        assert found is not None and all(word in found for word in words)


# -------------------------------------------------------------------------------- real folders


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """(policy before training, live checkpoint) of a tiny mixture of experts, one learning step apart."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import tiny_policy

    from lightning_smith.miniature.policy.model import load_policy

    torch.set_num_threads(1)
    start = tiny_policy.write(tmp_path / "start", "moe")
    model, tokenizer = load_policy(start)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)

    def fill(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "optimizer.pt").write_bytes(b"moments")
        (folder / "state.json").write_text("{}")

    return start, write_checkpoint(tmp_path, 4, fill)


@pytest.fixture
def prompts() -> list[list[dict[str, str]]]:
    pytest.importorskip("torch")
    import tiny_policy

    return [tiny_policy.messages(path) for path in tiny_policy.PATHS[:2]]


@pytest.mark.torch
def test_export_is_whole_and_described(run, prompts, tmp_path: Path):
    start, checkpoint = run
    proof = export_checkpoint(checkpoint, start, tmp_path / "export", prompts)
    assert proof["changed_fraction"] == 1.0 and proof["changed_tensors"] == proof["tensors"]
    assert proof["dtype"] == "float32" and proof["greedy_prompts"] == 2 and proof["greedy_tokens"] >= 2
    names = {path.name for path in (tmp_path / "export").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert not names & {"optimizer.pt", "state.json", "files.json"}
    assert set(proof["files"]) == names
    assert not list(tmp_path.glob(".export*")), "no partial folder stays"
    tokenizer = json.loads((tmp_path / "export/tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast", (
        "transformers 4 knows no TokenizersBackend"
    )
    assert not {"backend", "is_local", "local_files_only"} & set(tokenizer)


@pytest.mark.torch
def test_what_killed_exports_left_is_removed_by_the_next(run, prompts, tmp_path: Path):
    start, checkpoint = run
    for name in (".export.partial", ".export.partial.4711"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half of it")
    export_checkpoint(checkpoint, start, tmp_path / "export", prompts)
    assert not list(tmp_path.glob(".export*"))


@pytest.mark.torch
@pytest.mark.parametrize(
    "stray",
    ["adapter_config.json", "adapter_model.safetensors", "model.safetensors.index.json",
     "model-00001-of-00002.safetensors", "pytorch_model.bin", "lora/adapter_config.json"],
)  # fmt: skip
def test_a_stray_is_refused_by_name(run, prompts, tmp_path: Path, stray: str):
    start, checkpoint = run
    export = tmp_path / "export"
    export_checkpoint(checkpoint, start, export, prompts)
    (export / stray).parent.mkdir(exist_ok=True)
    (export / stray).write_text("{}")
    with pytest.raises(UserError, match=f"export: {stray} is a stray"):
        verify_export(export, checkpoint, start, prompts)


def exchange_special_tokens(tokenizer: dict) -> None:
    ids = {token["content"]: token for token in tokenizer["added_tokens"]}
    first, second = list(ids.values())[:2]
    first["content"], second["content"] = second["content"], first["content"]
    vocabulary = tokenizer["model"]["vocab"]
    a, b = first["content"], second["content"]
    if a in vocabulary and b in vocabulary:
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]


def split_digits(tokenizer: dict) -> None:
    tokenizer["pre_tokenizer"] = {"type": "Digits", "individual_digits": True}


def lowercase(tokenizer: dict) -> None:
    tokenizer["normalizer"] = {"type": "Lowercase"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (split_digits, "the pre_tokenizer of its tokenizer"),
        (lowercase, "the normalizer of its tokenizer"),
        (exchange_special_tokens, "the special tokens of its tokenizer"),
    ],
)
def test_a_tokenizer_that_does_something_else_is_refused(
    run, prompts, tmp_path: Path, damage: Callable[[dict], None], sentence: str
):
    """Export and checkpoint agree with each other, and not with the policy before training."""
    start, checkpoint = run
    export = tmp_path / "export"
    export_checkpoint(checkpoint, start, export, prompts)
    tokenizer = json.loads((export / "tokenizer.json").read_text())
    damage(tokenizer)
    for folder in (export, checkpoint):
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=sentence):
        verify_export(export, checkpoint, start, prompts)


def test_an_export_is_what_its_manifest_lists(tmp_path: Path):
    from lightning_smith.training.checkpoint import describe_files

    export, manifest = tmp_path / "export", tmp_path / "step_4.json"
    export.mkdir()
    for name in ("config.json", "model.safetensors"):
        (export / name).write_text(name)
    manifest.write_text(json.dumps({"files": describe_files(export)}))
    require_export(manifest, export)
    other = manifest.with_name("other.json")
    for text in ("[]", "{}", '{"files": {}}', '{"files": ["config.json"]}'):
        other.write_text(text)
        with pytest.raises(UserError, match=r"other\.json lists no files, so it is no manifest .* delete"):
            require_export(other, export)
    (export / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json is a stray"):
        require_export(manifest, export)
    (export / "adapter_config.json").unlink()
    (export / "model.safetensors").write_text("model.safetensorx")
    with pytest.raises(UserError, match=r"model\.safetensors has another sha256 than .*step_4\.json says"):
        require_export(manifest, export)
    shutil.rmtree(export)
    with pytest.raises(UserError, match=r"config\.json is missing, and .*step_4\.json lists it: delete"):
        require_export(manifest, export)


@pytest.mark.torch
def test_an_unfinished_checkpoint_is_refused(run, prompts, tmp_path: Path):
    start, checkpoint = run
    (checkpoint / "files.json").unlink()
    with pytest.raises(UserError, match=r"no whole checkpoint: it lacks files\.json"):
        export_checkpoint(checkpoint, start, tmp_path / "export", prompts)
    assert not (tmp_path / "export").exists()


@pytest.mark.torch
def test_a_policy_that_did_not_change_is_refused(run, prompts, tmp_path: Path):
    start, checkpoint = run
    export_checkpoint(checkpoint, start, tmp_path / "export", prompts)
    for folder in (tmp_path / "export", checkpoint):
        shutil.copy(start / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(UserError, match="no tensor differs from the model before training"):
        verify_export(tmp_path / "export", checkpoint, start, prompts)


Tensors = dict  # names -> tensors


def zero_one_number(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.gate.weight"][0, 0] = 0.0


def drop(tensors: Tensors) -> None:
    del tensors["model.layers.0.self_attn.q_proj.weight"]


def add(tensors: Tensors) -> None:
    tensors["lm_head.bias"] = tensors["model.norm.weight"].clone()


def reshape(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()


def halve(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].bfloat16()


def overflow(tensors: Tensors) -> None:
    tensors["model.embed_tokens.weight"][3, 3] = float("nan")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (zero_one_number, "tensor model.layers.1.mlp.gate.weight is not the one of the checkpoint"),
        (drop, "tensor model.layers.0.self_attn.q_proj.weight is missing"),
        (add, "tensor lm_head.bias is not in the model before training"),
        (reshape, "tensor model.norm.weight has shape"),
        (halve, "tensor model.norm.weight is of torch.bfloat16, config.json says float32"),
        (overflow, "tensor model.embed_tokens.weight holds a number that is not finite"),
    ],
)
def test_a_tensor_at_fault_is_named(
    run, prompts, tmp_path: Path, damage: Callable[[Tensors], None], sentence: str
):
    from safetensors.torch import load_file, save_file

    start, checkpoint = run
    export = tmp_path / "export"
    export_checkpoint(checkpoint, start, export, prompts)
    tensors = load_file(export / "model.safetensors")
    damage(tensors)
    save_file(tensors, export / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=sentence):
        verify_export(export, checkpoint, start, prompts)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        (
            "config.json",
            '"tie_word_embeddings": true',
            '"tie_word_embeddings": false',
            "tie_word_embeddings False",
        ),
        ("chat_template.jinja", "assistant", "model", "the chat template of its tokenizer is not that of"),
        ("tokenizer_config.json", '"left"', '"right"', "the padding side of its tokenizer is not that of"),
        (
            "tokenizer_config.json",
            "TokenizerFast",
            "TokenizerSlow",
            "the class of its tokenizer is not that of",
        ),
        (
            "tokenizer_config.json",
            '"PreTrainedTokenizerFast"',
            '"GPT2Tokenizer"',
            "the class of its tokenizer",
        ),
        ("generation_config.json", '"eos_token_id": 2', '"eos_token_id": 1', "eos_token_id is not that of"),
        (
            "config.json",
            '"rms_norm_eps": 1e-06',
            '"rms_norm_eps": 0.5',
            "parts from the checkpoint's at token",
        ),
    ],
)
def test_a_text_at_fault_is_named(run, prompts, tmp_path: Path, name: str, old: str, new: str, sentence: str):
    start, checkpoint = run
    export = tmp_path / "export"
    export_checkpoint(checkpoint, start, export, prompts)
    text = (export / name).read_text()
    assert old in text
    (export / name).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=sentence):
        verify_export(export, checkpoint, start, prompts)


@pytest.mark.torch
def test_script_writes_its_manifest_last_and_refuses_other_files(run, tmp_path: Path):
    import importlib.util

    from lightning_smith.training.checkpoint import describe_files

    start, checkpoint = run
    script = Path(__file__).parents[3] / "scripts/train/export_checkpoint.py"
    spec = importlib.util.spec_from_file_location("export_checkpoint_script", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    manifest = {"recipe": "moe", "step": 4, "trained_examples": 8, "checkpoint": str(checkpoint)}
    (tmp_path / "step_4.json").write_text(json.dumps({**manifest, "files": describe_files(checkpoint)}))
    flags = ["--manifest", str(tmp_path / "step_4.json"), "--model", str(start)]
    flags += ["--export", str(tmp_path / "export"), "--out", str(tmp_path / "out.json")]
    module.main(flags)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["trained_examples"] == 8 and written["greedy_prompts"] == 4
    assert written["files"] == describe_files(tmp_path / "export")

    (checkpoint / "state.json").write_text("{} ")
    (tmp_path / "out.json").unlink()
    with pytest.raises(UserError, match="does not hold the files"):
        module.main(flags)
    assert not (tmp_path / "out.json").exists()
