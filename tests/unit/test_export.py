"""Exports that are what was trained, and what is wrong with those that are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_smith.errors import UserError
from lightning_smith.training.checkpoint import write_checkpoint
from lightning_smith.training.export import HeadFacts, export_checkpoint, head_fault, verify_export

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

    from lightning_smith.mini.policy import load_policy

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
    for name in ("model.safetensors", "config.json"):
        shutil.copy(start / name, checkpoint / name)
    with pytest.raises(UserError, match="no tensor differs from the model before training"):
        verify_export(checkpoint, checkpoint, start, prompts)


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
        ("chat_template.jinja", "assistant", "model", "chat_template.jinja is not that of"),
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
    script = Path(__file__).parents[2] / "scripts/export_checkpoint.py"
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
