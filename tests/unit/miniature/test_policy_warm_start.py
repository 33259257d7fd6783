"""The tiny policy: tokenizer, models, warm-start stages, upcycling, and what is committed of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, sha256_file, write_jsonl
from lightning_smith.miniature.policy import upcycle, warm_start
from lightning_smith.miniature.policy.conversation import (
    SPECIAL_TOKENS,
    SUBMIT_COMMAND,
    Edit,
    EditTask,
    edit_prompt,
    render_reply,
    submit_prompt,
)
from lightning_smith.miniature.policy.demonstrations import Demonstrations, find_sites, whole_conversation
from lightning_smith.miniature.policy.model import (
    build_model,
    count_parameters,
    encode,
    load_policy,
    save_policy,
    train_tokenizer,
)
from lightning_smith.miniature.policy.sampling import Sampler
from lightning_smith.miniature.policy.scoring import exact_repairs
from lightning_smith.miniature.policy.warm_start import DENSE_STAGES, MOE_STAGES, Stage, WarmStart

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = ROOT / "assets/miniature/warm_start"

CODE = """\
def area(width, height):
    if width < 0 or height == 0:
        return None
    return width * height + 1
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demonstrations_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demonstrations") / "demonstrations.jsonl"
    sites = [site for seed in range(20) for site in find_sites(CODE, "a/area.py", "a", random.Random(seed))]
    write_jsonl(path, (site.to_dict() for site in sites))
    return path


@pytest.fixture(scope="session")
def dense() -> tuple[Any, Any]:
    return load_policy(COMMITTED / "dense")


SHORT = Stage("short", "demonstrations", steps=4, seed=3, batch=4, warmup_steps=2)


def chain(demonstrations_file: Path, work: Path, *stages: Stage) -> WarmStart:
    return WarmStart(
        stages=stages,
        start=lambda: warm_start.random_policy(demonstrations_file),
        origin={"kind": "dense"},
        demonstrations_file=demonstrations_file,
        work=work,
    )


@pytest.fixture
def quick_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "TOKENIZER_CONVERSATIONS", 50)


# --------------------------------------------------------------------------------------- tokenizer


def test_an_operator_with_its_blanks_is_one_token(dense: tuple[Any, Any]):
    _, tokenizer = dense
    for operator in (
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "and",
        "or",
        "is",
        "in",
    ):
        assert len(encode(tokenizer, f" {operator} ")) == 1, operator
    for operator in ("is not", "not in"):
        assert len(encode(tokenizer, f" {operator} ")) == 1, operator
    assert encode(tokenizer, "".join(SPECIAL_TOKENS)) == [0, 1, 2]


def test_any_text_survives_the_tokenizer(dense: tuple[Any, Any]):
    _, tokenizer = dense
    text = "12345:    naïve = '日本' ** 3  #\ttab\n\n  \\* x\n"
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_the_chat_template_writes_what_the_prompts_are(dense: tuple[Any, Any]):
    _, tokenizer = dense
    task = EditTask("cmp", "f", "a/b.py", 3, ("x = a < b",), Edit(3, " < ", " > "))
    turns = edit_prompt(task).split("<|im_start|>")[1:-1]
    messages = [
        dict(zip(("role", "content"), turn.removesuffix("<|im_end|>\n").split("\n", 1), strict=True))
        for turn in turns
    ]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert written == edit_prompt(task)


def test_the_tokenizer_is_the_same_every_time():
    texts = ["if a == b:\n    return a + b\n", "sed -i '12s| == | != |' a/b.py"] * 3
    once, again = (train_tokenizer(texts).backend_tokenizer.to_str() for _ in range(2))
    assert once == again


# ------------------------------------------------------------------------------------------ models


def test_sizes_and_repeatability_of_the_models():
    dense, moe = build_model("dense"), build_model("moe")
    assert count_parameters(dense) == 918_912
    assert count_parameters(moe) == 1_906_048
    again = build_model("dense").state_dict()
    assert all(torch.equal(weights, again[name]) for name, weights in dense.state_dict().items())
    other = build_model("dense", seed=1).state_dict()
    assert not all(torch.equal(weights, other[name]) for name, weights in dense.state_dict().items())


def test_saving_keeps_the_live_model_and_replaces_the_folder(tmp_path: Path, dense: tuple[Any, Any]):
    _, tokenizer = dense
    model = build_model("dense")
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "stale").touch()
    save_policy(model, tokenizer, folder, torch.bfloat16)
    assert not (folder / "stale").exists()
    assert next(model.parameters()).dtype == torch.float32
    loaded, _ = load_policy(folder)
    for name, weights in loaded.state_dict().items():
        assert weights.dtype == torch.float32
        assert torch.equal(weights, model.state_dict()[name].bfloat16().float())
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_folder_without_weights_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"lacks config\.json"):
        load_policy(tmp_path)


# -------------------------------------------------------------------------------- examples, losses


def test_an_example_is_the_conversation_with_weights(dense: tuple[Any, Any], demonstrations_file: Path):
    _, tokenizer = dense
    demonstrations = Demonstrations.read(demonstrations_file)
    stage = replace(SHORT, context_weight=0.03, copied_weight=0.3, line_weight=5.0)
    rng = random.Random(0)
    for _ in range(50):
        task = demonstrations.draw(rng)
        segments = warm_start.weighted_segments(task, task.repair, stage, submit=True)
        text = "".join(piece for piece, _ in segments)
        assert text == whole_conversation(task)
        # Cut in segments it must give the tokens that sampling sees.
        pieces = [token for piece, _ in segments for token in encode(tokenizer, piece)]
        assert pieces == encode(tokenizer, text)
        assert (str(task.repair.line), 5.0) in segments
        assert [weight for piece, weight in segments if piece.startswith("s|")] == [3.0]


def test_only_some_examples_go_on_to_the_third_turn(dense: tuple[Any, Any], demonstrations_file: Path):
    _, tokenizer = dense
    demonstrations = Demonstrations.read(demonstrations_file)
    rng = random.Random(0)
    submit = encode(tokenizer, render_reply(SUBMIT_COMMAND))
    ends = 0
    for _ in range(200):
        ids, weights, in_edit = warm_start.draw_example(demonstrations, tokenizer, SHORT, rng)
        assert len(ids) == len(weights) == len(in_edit)
        assert any(in_edit)
        ends += ids[-len(submit) :] == submit
    assert 35 < ends < 85


def test_the_loss_is_the_weighted_mean_whatever_the_padding(dense: tuple[Any, Any]):
    model, _ = dense
    rng = random.Random(0)
    lengths = (5, 9, 7, 6)
    examples = [
        (
            [rng.randrange(3, 1000) for _ in range(n)],
            [rng.random() for _ in range(n)],
            [i > 2 for i in range(n)],
        )
        for n in lengths
    ]
    model.zero_grad()
    loss, edit_loss = warm_start.demonstration_loss(model, examples)
    total = weight_sum = edit_total = 0.0
    edit_count = 0
    with torch.no_grad():
        for ids, weights, in_edit in examples:
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
            losses = -torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
            total += float((losses * torch.tensor(weights[1:])).sum())
            weight_sum += sum(weights[1:])
            edit_total += float(losses[torch.tensor(in_edit[1:])].sum())
            edit_count += sum(in_edit)
    assert loss == pytest.approx(total / weight_sum, rel=1e-4)
    assert edit_loss == pytest.approx(edit_total / edit_count, rel=1e-4)
    model.zero_grad()


def test_learning_rates():
    stage = Stage("s", "demonstrations", steps=100, seed=0, learning_rate=2e-3, warmup_steps=10)
    rates = [warm_start.learning_rate(stage, step) for step in range(100)]
    assert rates[0] == pytest.approx(2e-4)
    assert max(rates) < 2e-3
    assert rates[-1] == pytest.approx(1e-4, rel=0.02)
    copying = replace(stage, task="copying")
    assert warm_start.learning_rate(copying, 99) == 2e-3


# ------------------------------------------------------------------------------------------ stages


def weights_of(folder: Path) -> str:
    return sha256_file(folder / "model.safetensors")


@pytest.mark.usefixtures("quick_tokenizer")
def test_a_killed_run_goes_on_and_ends_with_the_same_weights(
    tmp_path: Path, demonstrations_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(warm_start, "CHECKPOINT_EVERY", 2)
    chain(demonstrations_file, tmp_path / "whole", SHORT).run()

    class Killed(BaseException):
        pass

    real = warm_start.demonstration_loss
    calls = 0

    def dies_in_the_fourth_step(model: Any, examples: Any) -> tuple[float, float]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Killed
        return real(model, examples)

    monkeypatch.setattr(warm_start, "demonstration_loss", dies_in_the_fourth_step)
    with pytest.raises(Killed):
        chain(demonstrations_file, tmp_path / "cut", SHORT).run()
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["0-short.checkpoint.pt"]
    _, _, recipe = chain(demonstrations_file, tmp_path / "cut", SHORT).run()
    assert calls == 6  # three steps, the killed one, and the last two again
    assert recipe["stages"][0]["steps"] == 4
    assert weights_of(tmp_path / "cut/0-short") == weights_of(tmp_path / "whole/0-short")
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["0-short"]


@pytest.mark.usefixtures("quick_tokenizer")
def test_finished_stages_are_kept_until_what_made_them_changes(tmp_path: Path, demonstrations_file: Path):
    second = replace(SHORT, name="second", steps=1)
    chain(demonstrations_file, tmp_path, SHORT, second).run()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/stage.json")}
    assert len(before) == 2
    chain(demonstrations_file, tmp_path, SHORT, second).run()
    assert {path: path.stat().st_mtime_ns for path in before} == before

    # Another last stage leaves the first alone; another first stage trains both again.
    chain(demonstrations_file, tmp_path, SHORT, replace(second, seed=9)).run()
    changed = [path.parent.name for path in before if path.stat().st_mtime_ns != before[path]]
    assert changed == ["1-second"]
    kept = weights_of(tmp_path / "1-second")
    chain(demonstrations_file, tmp_path, replace(SHORT, seed=9), replace(second, seed=9)).run()
    assert weights_of(tmp_path / "1-second") != kept


@pytest.mark.usefixtures("quick_tokenizer")
def test_copying_ends_early_when_its_loss_is_low(tmp_path: Path, demonstrations_file: Path):
    stage = Stage("copying", "copying", steps=5, seed=1, batch=2, stop_below=100.0)
    _, _, recipe = chain(demonstrations_file, tmp_path, stage).run()
    assert recipe["stages"][0]["steps"] == 1


@pytest.mark.usefixtures("quick_tokenizer")
def test_training_lowers_the_loss(tmp_path: Path, demonstrations_file: Path):
    stage = replace(SHORT, steps=12)
    model, tokenizer, _ = chain(demonstrations_file, tmp_path, stage).run()
    fresh, _ = warm_start.random_policy(demonstrations_file)
    demonstrations = Demonstrations.read(demonstrations_file)
    rng = random.Random(5)
    examples = [warm_start.draw_example(demonstrations, tokenizer, stage, rng) for _ in range(8)]
    assert (
        warm_start.demonstration_loss(model, examples)[0]
        < warm_start.demonstration_loss(fresh, examples)[0] - 1
    )


# ---------------------------------------------------------------------------------------- upcycling


def test_experts_are_slices_of_the_dense_mlp(dense: tuple[Any, Any]):
    model, _ = dense
    moe = upcycle.upcycle(model)
    source, target = model.state_dict(), moe.state_dict()
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"):
        assert torch.equal(source[name], target[name])
    gate = source["model.layers.2.mlp.gate_proj.weight"]
    down = source["model.layers.2.mlp.down_proj.weight"]
    used: set[int] = set()
    for expert in range(8):
        gate_rows = target["model.layers.2.mlp.experts.gate_up_proj"][expert][:128]
        units = [int((gate == row).all(1).nonzero()[0]) for row in gate_rows]
        assert len(set(units)) == 128
        assert torch.equal(target["model.layers.2.mlp.experts.down_proj"][expert], down[:, units] * 3)
        used |= set(units)
    assert len(used) > 300


def test_an_moe_is_not_upcycled_again(tmp_path: Path, demonstrations_file: Path):
    with pytest.raises(UserError, match="not a dense"):
        upcycle.train_moe(COMMITTED / "moe", demonstrations_file, tmp_path / "out", tmp_path / "work")


# ------------------------------------------------------------------------------- what is committed


@pytest.mark.parametrize(
    ("kind", "stages", "parameters", "dtype"),
    [("dense", DENSE_STAGES, 918_912, "float32"), ("moe", MOE_STAGES, 1_906_048, "bfloat16")],
)
def test_the_committed_policies_are_what_their_recipes_say(
    kind: str, stages: tuple[Stage, ...], parameters: int, dtype: str
):
    folder = COMMITTED / kind
    recipe = read_json(folder / "recipe.json")
    weights = folder / "model.safetensors"
    assert weights.stat().st_size <= 4_000_000
    assert recipe["weights_sha256"] == sha256_file(weights)
    assert recipe["tokenizer_sha256"] == sha256_file(folder / "tokenizer.json")
    assert recipe["dtype"] == dtype
    settings = [record["settings"] for record in recipe["stages"]]
    assert settings == [json.loads(json.dumps(vars(stage))) for stage in stages]
    model, _ = load_policy(folder)
    assert recipe["parameters"] == count_parameters(model) == parameters


def test_both_policies_share_one_tokenizer_and_one_origin():
    assert (COMMITTED / "dense/tokenizer.json").read_bytes() == (
        COMMITTED / "moe/tokenizer.json"
    ).read_bytes()
    dense, moe = (read_json(COMMITTED / kind / "recipe.json") for kind in ("dense", "moe"))
    before_doubt = next(r for r in dense["stages"] if r["settings"]["name"] == "choosing")
    assert moe["origin"]["dense_weights_sha256"] == before_doubt["weights_sha256"]
    assert moe["demonstrations_sha256"] == dense["demonstrations_sha256"]


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_the_committed_policies_write_exact_repairs(kind: str):
    """A plain fault that any warm start repairs more often than chance would (one reply in thousands)."""
    lines = (
        "def total(prices):",
        "    result = 0",
        "    for price in prices:",
        "        result = result - price",
    )
    task = EditTask("arith", "total", "shop/basket.py", 11, lines, Edit(14, " - ", " + "))
    sampler = Sampler(COMMITTED / kind, torch.float32)
    assert exact_repairs(sampler, {"basket": task}, 16, 1.0, seed=0)["basket"] >= 2
    assert submit_prompt(task, "x").startswith(edit_prompt(task))
