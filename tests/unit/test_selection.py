"""Difficulty from the probe log alone: who is chosen, who is probed again, who is refused."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_smith.errors import UserError
from lightning_smith.files import read_json, read_jsonl, write_jsonl
from lightning_smith.probe.draw import seeded_order
from lightning_smith.probe.run import draw_tasks, folder_revision, probe_requests
from lightning_smith.probe.select import Difficulty, Selection, judge, select
from lightning_smith.rollout.outcome import Outcome, RolloutRecord, rollout_seed
from scripts import probe_log, select_by_difficulty

BASE = RolloutRecord("t", 0, Outcome.SOLVED, 1.0, True, 3, 1, 1, 0.1, "m", "r", "sha256:0", 7)


def group(name: str, outcomes: str, **changes: object) -> list[RolloutRecord]:
    """One record a letter: s(olved), u(nsolved), l(imit), i(nfra), g(rader error)."""
    kinds = {
        "s": Outcome.SOLVED,
        "u": Outcome.UNSOLVED,
        "l": Outcome.AGENT_LIMIT,
        "i": Outcome.INFRA,
        "g": Outcome.GRADER_ERROR,
    }
    records = []
    for sample, letter in enumerate(outcomes):
        valid = letter not in "ig"
        record = replace(
            BASE,
            instance_id=name,
            sample=sample,
            outcome=kinds[letter],
            reward=float(letter == "s") if valid else None,
            resolved=letter == "s" if valid else None,
            seed=rollout_seed(1, name, sample),
        )
        records.append(replace(record, **changes))
    return records


def choose(records: list[RolloutRecord], **options: int) -> Selection:
    settings = {"samples": 4, "mixed_limit": None, "all_failed": 0, "seed": 3, **options}
    return select(records, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "difficulty"),
    [
        ("ssss", Difficulty.ALL_SOLVED),
        ("sulu", Difficulty.MIXED),
        ("ulul", Difficulty.ALL_FAILED),
        ("iiii", Difficulty.TOO_FEW),
        ("uuui", Difficulty.TOO_FEW),
        ("sssg", Difficulty.TOO_FEW),
        ("sssis", Difficulty.ALL_SOLVED),
        ("uuuuis", Difficulty.MIXED),
    ],
)
def test_verdicts_count_valid_rollouts_only(outcomes: str, difficulty: Difficulty) -> None:
    assert judge("t", group("t", outcomes), 4).difficulty == difficulty


def test_equal_seeds_are_one_rollout(tmp_path: Path) -> None:
    records = group("acme.a", "ssss", seed=42) + group("acme.b", "susu")
    selection = choose(records)
    assert selection.of(Difficulty.ALL_SOLVED) == []
    assert selection.summary()["refused_same_seed"] == ["acme.a"]
    assert selection.chosen == {"acme.b"}
    assert (selection.tasks["acme.b"].solved, selection.tasks["acme.b"].valid) == (2, 4)


def test_equal_trajectories_of_different_seeds_are_flagged_but_count() -> None:
    records = group("a", "ssss", trajectory_sha256="x") + group("b", "susu")
    summary = choose(records).summary()
    assert summary["identical_groups"] == 1 and summary["counts"]["all_solved"] == 1


def test_draws_are_seeded_limited_and_independent_of_order() -> None:
    records = [r for i in range(20) for r in group(f"m{i}", "suuu")]
    records += [r for i in range(20) for r in group(f"f{i}", "uuuu")]
    records += [r for i in range(5) for r in group(f"e{i}", "ssss")]
    first = choose(records, mixed_limit=8, all_failed=3)
    random.Random(0).shuffle(records)
    assert choose(records, mixed_limit=8, all_failed=3).rows() == first.rows()
    assert first.summary()["chosen"] == {"mixed": 8, "all_failed": 3}
    assert first.chosen < choose(records, mixed_limit=9, all_failed=5).chosen
    assert choose(records, mixed_limit=8, all_failed=3, seed=4).chosen != first.chosen
    assert sum(first.summary()["counts"].values()) == first.summary()["probed"] == 45


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (group("a", "susu") * 2, "a sample 0 twice"),
        (group("a", "susu") + group("b", "susu", model_revision="r2"), r"mixes rollouts of the policies"),
        (group("a", "ssss"), r"no probed task is solved in some .*all_solved 1"),
    ],
)
def test_logs_that_cannot_be_used(records: list[RolloutRecord], error: str) -> None:
    with pytest.raises(UserError, match=error):
        choose(records)


def test_scripts_merge_and_select(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "1.jsonl", (r.to_dict() for r in group("b", "susu") + group("d", "suui")))
    write_jsonl(tmp_path / "0.jsonl", (r.to_dict() for r in group("a", "ssss", seed=1) + group("c", "uuuu")))
    log = tmp_path / "log.jsonl"
    probe_log.main(["--shards", str(tmp_path / "1.jsonl"), str(tmp_path / "0.jsonl"), "--out", str(log)])
    assert [(row["instance_id"], row["sample"]) for row in read_jsonl(log)][:5] == [
        *[("a", sample) for sample in range(4)],
        ("b", 0),
    ]
    out, summary = tmp_path / "selection.tsv", tmp_path / "summary.json"
    flags = ["--log", str(log), "--seed", "3", "--all-failed", "1"]
    select_by_difficulty.main([*flags, "--out", str(out), "--summary", str(summary)])
    assert out.read_text() == (
        "instance_id\tdifficulty\tsolved\tvalid\trollouts\tchosen\n"
        "a\tsame_seed\t4\t4\t4\t0\n"
        "b\tmixed\t2\t4\t4\t1\n"
        "c\tall_failed\t0\t4\t4\t1\n"
        "d\ttoo_few\t1\t3\t4\t0\n"
    )
    assert read_json(summary)["probe_again"] == ["d"]
    printed = capsys.readouterr().out
    assert "warning: a is refused" in printed and "warning: d has 3 of 4 valid rollouts" in printed


def test_longer_draw_extends_a_shorter_one() -> None:
    names = [f"t{i}" for i in range(50)]
    assert draw_tasks(names, 10, 1) == draw_tasks(names[::-1], 20, 1)[:10]
    assert draw_tasks(names, 10, 1) != draw_tasks(names, 10, 2)
    assert sorted(draw_tasks(names, None, 1)) == sorted(names)
    assert seeded_order([], 1) == []
    with pytest.raises(UserError, match="60 tasks are to be probed, but there are 50"):
        draw_tasks(names, 60, 1)


def test_seeds_of_a_group_differ_and_stay() -> None:
    requests = probe_requests(["a", "b"], 4, seed=5, timeout_s=60)
    assert [(r.instance_id, r.sample) for r in requests[:3]] == [("a", 0), ("b", 0), ("a", 1)]
    assert len({r.seed for r in requests}) == 8
    assert requests == probe_requests(["a", "b"], 4, seed=5, timeout_s=60)


def test_revision_follows_the_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no"):
        folder_revision(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "model.safetensors").write_bytes(b"1")
    first = folder_revision(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    assert folder_revision(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert folder_revision(tmp_path) != first
