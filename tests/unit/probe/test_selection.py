"""Difficulty from the probe log alone: who is chosen, who is probed again, who is refused."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.config.models import Selection as SelectionSettings
from lightning_smith.config.settings_file import write_settings
from lightning_smith.config.stages import SelectStage
from lightning_smith.contracts.outcome import Outcome, RolloutRecord, rollout_seed
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl, write_jsonl
from lightning_smith.probe.draw import Draw, seeded_order
from lightning_smith.probe.run import draw_tasks, folder_revision, probe_requests
from lightning_smith.probe.select import Difficulty, Selection, judge, judge_all, refuse_lost, select
from scripts.probe import probe_log, select_by_difficulty

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
            seed=rollout_seed(1, name, sample, stage="probe"),
        )
        records.append(replace(record, **changes))
    return records


def choose(records: list[RolloutRecord], **options: Any) -> Selection:
    settings = {"mixed_limit": None, "all_failed": 0, "validation": 0, "seed": 3, **options}
    return select(judge_all(records, 4), **settings)  # type: ignore[arg-type]


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
    assert selection.summary()["lost"] == {"too_few": [], "same_seed": ["acme.a"]}
    assert selection.train == {"acme.b"}
    assert (selection.tasks["acme.b"].solved, selection.tasks["acme.b"].valid) == (2, 4)


def test_equal_trajectories_of_different_seeds_are_flagged_but_count() -> None:
    records = group("a", "ssss", trajectory_sha256="x") + group("b", "susu")
    summary = choose(records).summary()
    assert summary["identical_groups"] == 1 and summary["counts"]["all_solved"] == 1


def probed(mixed: int = 20, failed: int = 20, solved: int = 5) -> list[RolloutRecord]:
    records = [r for i in range(mixed) for r in group(f"m{i}", "suuu")]
    records += [r for i in range(failed) for r in group(f"f{i}", "uuuu")]
    return records + [r for i in range(solved) for r in group(f"e{i}", "ssss")]


def test_draws_are_seeded_limited_and_independent_of_order() -> None:
    records = probed()
    options = {"mixed_limit": 8, "all_failed": 3, "validation": 6}
    first = choose(records, **options)
    random.Random(0).shuffle(records)
    assert choose(records, **options).rows() == first.rows()
    assert first.summary()["train"] == {"all_solved": 0, "mixed": 8, "all_failed": 3}
    assert sum(first.summary()["validation"].values()) == 6 and not first.train & first.validation
    assert first.train < choose(records, mixed_limit=9, all_failed=5, validation=6).train
    assert first.validation < choose(records, validation=9).validation
    other = choose(records, **options, seed=4)
    assert other.train != first.train and other.validation != first.validation
    assert sum(first.summary()["counts"].values()) == first.summary()["probed"] == 45


def test_validation_leaves_training_all_other_mixed_tasks() -> None:
    """As published: every mixed task trains, and validation is beside them."""
    chosen = choose(probed(), all_failed=10, validation=9).summary()
    assert chosen["train"] == {"all_solved": 0, "mixed": 20 - chosen["validation"]["mixed"], "all_failed": 10}
    assert min(chosen["validation"].values()) > 0


@pytest.mark.parametrize("pool", [["mixed"], ["all_failed"], ["all_solved", "all_failed"]])
def test_the_pool_of_validation(pool: list[str]) -> None:
    chosen = choose(probed(), all_failed=4, validation=5, validation_pool=[Difficulty(name) for name in pool])
    assert {chosen.tasks[name].difficulty.value for name in chosen.validation} <= set(pool)
    assert len(chosen.validation) == 5 and not chosen.train & chosen.validation
    assert chosen.summary()["train"] == {
        "all_solved": 0,
        "mixed": 15 if pool == ["mixed"] else 20,
        "all_failed": 4,
    }
    with pytest.raises(
        UserError, match=rf"46 tasks are .* and \d+ of the probed ones are {' or '.join(pool)}"
    ):
        choose(probed(), validation=46, validation_pool=[Difficulty(name) for name in pool])


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (group("a", "susu") * 2, "a sample 0 twice"),
        (group("a", "susu") + group("b", "susu", model_revision="r2"), r"mixes rollouts of the policies"),
        (group("a", "ssss"), r"no probed task that is solved in some .*all_solved 1"),
    ],
)
def test_logs_that_cannot_be_used(records: list[RolloutRecord], error: str) -> None:
    with pytest.raises(UserError, match=error):
        choose(records)


@pytest.mark.parametrize("name", ["mixed_limit", "all_failed", "validation"])
def test_counts_below_zero_draw_nothing(name: str) -> None:
    """-3 validation tasks would be all but three."""
    with pytest.raises(UserError, match=f"{name}=-3 must not be below 0"):
        choose(probed(), **{name: -3})


def test_a_pool_that_names_a_difficulty_twice_holds_its_tasks_once() -> None:
    pool = [Difficulty.MIXED, Difficulty.MIXED]
    assert choose(probed(), validation=10, validation_pool=pool).summary()["validation"]["mixed"] == 10


def test_no_rollouts_make_no_difficulty() -> None:
    with pytest.raises(UserError, match="samples=0 must be at least 1"):
        judge_all(probed(), 0)


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
    told = SelectStage(
        selection=SelectionSettings(
            mixed_limit=None,
            all_failed_sample=1,
            validation_tasks=0,
            validation_pool=("all_solved", "mixed", "all_failed"),
            seed=3,
        ),
        samples=4,
        max_lost_fraction=0.0,
    )
    flags = ["--settings", write_settings(tmp_path, told), "--log", str(log)]
    flags += ["--out", str(out), "--summary", str(summary)]
    with pytest.raises(UserError, match=r"2 of 4 probed tasks are lost.* such as a \(some share a seed\)"):
        select_by_difficulty.main(flags)
    assert not out.exists()
    flags += ["--set", "max_lost_fraction=0.5"]
    select_by_difficulty.main([*flags, "--set", "selection.all_failed_sample=2"])
    assert "2 tasks solved in no rollout were to train, and there are 1" in capsys.readouterr().out
    select_by_difficulty.main(flags)
    assert out.read_text() == (
        "instance_id\tdifficulty\tsolved\tvalid\trollouts\tchosen\n"
        "a\tsame_seed\t4\t4\t4\tno\n"
        "b\tmixed\t2\t4\t4\ttrain\n"
        "c\tall_failed\t0\t4\t4\ttrain\n"
        "d\ttoo_few\t1\t3\t4\tno\n"
    )
    assert read_json(summary)["lost"] == {"too_few": ["d"], "same_seed": ["a"]}
    assert "warning: 2 of 4 probed tasks are lost" in capsys.readouterr().err


def test_lost_tasks_are_named_with_their_cause(capsys: pytest.CaptureFixture[str]) -> None:
    records = group("a", "suui", error="no answer") + [r for i in range(9) for r in group(f"m{i}", "suuu")]
    with pytest.raises(
        UserError, match=r"1 of 10 .*allowed: 9.0%.* a \(3 with a verdict, infra: no answer\)"
    ):
        refuse_lost(judge_all(records, 4), records, 0.09)
    with pytest.raises(UserError, match=r"1 of 10"):
        refuse_lost(judge_all(records, 4), records, math.nan)
    refuse_lost(judge_all(records, 4), records, 0.1)
    assert "warning: 1 of 10 probed tasks are lost" in capsys.readouterr().err
    refuse_lost(judge_all(records, 3), records, 0.0)
    assert capsys.readouterr().err == ""


def test_longer_draw_extends_a_shorter_one() -> None:
    names = [f"t{i}" for i in range(50)]
    assert draw_tasks(names, 10, 1) == draw_tasks(names[::-1], 20, 1)[:10]
    assert draw_tasks(names, 10, 1) != draw_tasks(names, 10, 2)
    assert sorted(draw_tasks(names, None, 1)) == sorted(names)
    assert seeded_order([], 1, Draw.MIXED) == []
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
