"""The miniature's own network against transformers' models of the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_policy

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.policy.model import load_policy
from lightning_smith.miniature.policy.network import WIDE_TOKENS, Network
from lightning_smith.miniature.policy.text import ChatText

pytestmark = pytest.mark.torch

COMMITTED = Path(__file__).parents[3] / "assets/miniature/warm_start"
TOKENS = torch.arange(3, 51).view(2, 24)
REAL = torch.ones(2, 24, dtype=torch.bool)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("policy")
    return {kind: tiny_policy.write(root / kind, kind) for kind in ("dense", "moe")}


def logits(network: Network, tokens: Any = TOKENS, experts: Any = None) -> Any:
    mask = torch.ones_like(tokens, dtype=torch.bool)
    return network.logits(network.read(network.empty(len(tokens)), tokens, mask, experts)[0])


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("place", ["tiny", "committed"])
def test_logits_are_those_of_transformers(folders: dict[str, Path], kind: str, place: str):
    folder = folders[kind] if place == "tiny" else COMMITTED / kind
    model, _ = load_policy(folder)
    with torch.no_grad():
        expected = model(input_ids=TOKENS).logits
        found = logits(Network.load(folder))
    assert TOKENS.numel() > WIDE_TOKENS
    assert torch.allclose(found, expected, atol=2e-4), (found - expected).abs().max()


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_gradients_are_those_of_transformers(folders: dict[str, Path], kind: str):
    model, _ = load_policy(folders[kind])
    network = Network.load(folders[kind], frozen=False)
    model(input_ids=TOKENS).logits.square().mean().backward()
    logits(network).square().mean().backward()
    embeddings = network.weights["model.embed_tokens.weight"].grad
    assert torch.allclose(embeddings, model.model.embed_tokens.weight.grad, atol=1e-5, rtol=1e-3)
    if kind == "moe":
        for layer, block in enumerate(model.model.layers):
            gate = network.weights[f"model.layers.{layer}.mlp.gate.weight"].grad
            assert gate.abs().sum() > 0
            assert torch.allclose(gate, block.mlp.gate.weight.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("gradients", [False, True])
def test_reading_in_parts_with_gaps_equals_reading_at_once(
    folders: dict[str, Path], kind: str, gradients: bool
):
    """Rows of different lengths, read in three parts, rows exchanged in between; the last part token by token."""
    network = Network.load(folders[kind])
    lengths = [(5, 3, 4), (9, 1, 4)]
    rows = [torch.arange(3 + 30 * row, 3 + 30 * row + sum(parts)) for row, parts in enumerate(lengths)]
    with torch.set_grad_enabled(gradients):
        context, order, starts = network.empty(2), [0, 1], [0, 0]
        for part in range(2):
            width = max(lengths[row][part] for row in order)
            tokens, mask = torch.zeros(2, width, dtype=torch.long), torch.zeros(2, width, dtype=torch.bool)
            for place, row in enumerate(order):
                count = lengths[row][part]
                tokens[place, :count] = rows[row][starts[row] : starts[row] + count]
                mask[place, :count] = True
                starts[row] += count
            network.read(context, tokens, mask)
            context, order = context.selected(torch.tensor([1, 0])), order[::-1]
        for step in range(4):
            tokens = torch.stack([rows[row][starts[row] + step] for row in order])[:, None]
            hidden, _ = network.read(context, tokens, torch.ones(2, 1, dtype=torch.bool))
        for place, row in enumerate(order):
            whole = logits(network, rows[row][None])[0, -1]
            assert torch.allclose(network.logits(hidden[place, 0]), whole, atol=1e-4)


def test_padding_may_reach_beyond_the_last_position(folders: dict[str, Path]):
    """A row that is almost full beside one that reads a long prompt."""
    network = Network.load(folders["dense"])
    long, fresh = torch.arange(250) % 190 + 3, torch.arange(40) + 3
    context = network.empty(2)
    with torch.no_grad():
        mask = torch.stack([torch.ones(250, dtype=torch.bool), torch.zeros(250, dtype=torch.bool)])
        network.read(context, torch.stack([long, torch.zeros_like(long)]), mask)
        tokens = torch.stack([torch.cat([torch.tensor([7]), torch.zeros(39, dtype=torch.long)]), fresh])
        hidden, _ = network.read(context, tokens, torch.arange(40) < torch.tensor([[1], [40]]))
        whole = logits(network, torch.cat([long, torch.tensor([7])])[None])[0, -1]
        assert torch.allclose(network.logits(hidden[0, 0]), whole, atol=1e-4)
        assert torch.allclose(network.logits(hidden[1]), logits(network, fresh[None])[0], atol=1e-4)


def test_replaying_what_was_chosen_changes_nothing(folders: dict[str, Path]):
    network = Network.load(folders["moe"])
    hidden, experts = network.read(network.empty(2), TOKENS, REAL)
    assert experts is not None and experts.shape == (2, 24, 2, 2) and experts.dtype == torch.uint8
    assert torch.allclose(logits(network, experts=experts), network.logits(hidden), atol=1e-5)


def test_few_and_many_tokens_are_computed_alike(folders: dict[str, Path]):
    """The two ways of computing the experts."""
    network = Network.load(folders["moe"])
    few = torch.cat([logits(network, row[None, :8]) for row in TOKENS])
    assert TOKENS[:, :8].numel() <= WIDE_TOKENS < TOKENS.numel()
    assert torch.allclose(few, logits(network)[:, :8], atol=1e-4)


def test_replay_decides_the_experts(folders: dict[str, Path]):
    network = Network.load(folders["moe"])
    forced = torch.zeros(2, 24, 2, 2, dtype=torch.uint8)
    forced[..., 1] = 7
    hidden, experts = network.read(network.empty(2), TOKENS, REAL, forced)
    assert torch.equal(experts, forced)
    assert not torch.allclose(network.logits(hidden), logits(network), atol=1e-2)


def test_the_router_keeps_its_gradient_under_replay(folders: dict[str, Path]):
    network = Network.load(folders["moe"], frozen=False)
    with torch.no_grad():
        _, experts = network.read(network.empty(2), TOKENS, REAL)
    logits(network, experts=experts).square().sum().backward()
    gates = [weight for name, weight in network.weights.items() if name.endswith("mlp.gate.weight")]
    assert len(gates) == 2 and all(gate.grad is not None and gate.grad.abs().sum() > 0 for gate in gates)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_experts_of_another_shape_are_refused(folders: dict[str, Path], kind: str):
    network = Network.load(folders[kind])
    with pytest.raises(ValueError, match="experts of shape"):
        logits(network, experts=torch.zeros(2, 24, 4, 2))


def test_bfloat16_rounds_like_transformers(folders: dict[str, Path]):
    """Its results are numbers of bfloat16, and as far from fp32 as those of transformers in bfloat16."""
    exact = logits(Network.load(folders["dense"]))
    rounded = logits(Network.load(folders["dense"], torch.bfloat16))
    assert torch.equal(rounded, rounded.bfloat16().float())
    model, _ = load_policy(folders["dense"], torch.bfloat16)
    with torch.no_grad():
        theirs = model(input_ids=TOKENS).logits.float()
    ours_off, theirs_off = ((other - exact).square().mean().sqrt() for other in (rounded, theirs))
    assert 0.5 < ours_off / theirs_off < 2


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_what_is_saved_is_a_hugging_face_folder(folders: dict[str, Path], kind: str, tmp_path: Path):
    network = Network.load(folders[kind], frozen=False)
    with torch.no_grad():
        for weight in network.weights.values():
            weight.add_(0.01)
    network.save(tmp_path / "saved")
    model, tokenizer = load_policy(tmp_path / "saved")
    with torch.no_grad():
        assert torch.allclose(model(input_ids=TOKENS).logits, logits(network), atol=2e-4)
    assert tokenizer.eos_token_id == 2
    before, after = (json.loads((f / "config.json").read_text()) for f in (folders[kind], tmp_path / "saved"))
    assert after == {**before, "dtype": "float32"}
    again = Network.load(tmp_path / "saved")
    assert all(torch.equal(again.weights[name], weight) for name, weight in network.weights.items())


def damage(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "model_type='llama'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"hidden_size": 64}, "does not fit in tensor model.embed_tokens.weight"),
        ({"num_hidden_layers": 3}, "does not fit in tensor model.layers.2"),
        ({"num_hidden_layers": 1}, "expected none"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any], words: str
):
    folder = Path(shutil.copytree(folders["dense"], tmp_path / "policy"))
    damage(folder, **changes)
    with pytest.raises(UserError, match="policy") as caught:
        Network.load(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_folder_is_refused(folders: dict[str, Path], tmp_path: Path, name: str):
    folder = Path(shutil.copytree(folders["dense"], tmp_path / "policy"))
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"lacks {name}"):
        Network.load(folder)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_text_is_that_of_transformers(kind: str):
    _, tokenizer = load_policy(COMMITTED / kind)
    text = ChatText(COMMITTED / kind)
    messages = [*tiny_policy.messages(), {"role": "assistant", "content": "```bash\nls  \n```"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(rendered, add_special_tokens=False)
    assert list(text.encode_chat(messages)) == prompt
    assert text.decode(prompt) == tokenizer.decode(prompt, skip_special_tokens=True)
    assert [text.piece(token) for token in range(1024)] == [tokenizer.decode([t]) for t in range(1024)]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no readable tokenizer"):
        ChatText(tmp_path)
