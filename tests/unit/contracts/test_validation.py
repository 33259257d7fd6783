"""Records of validation runs, their log, and the verdict that they give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swe_smith_rows import load_script, make_row, write_shard

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.validation import (
    Patch,
    ValidationLog,
    ValidationRecord,
    read_records,
    verdict,
    verdicts,
)
from lightning_smith.core.errors import UserError
from lightning_smith.funnel.filters import validated
from lightning_smith.funnel.filters.decisions import Decisions, read_decisions, write_decisions
from lightning_smith.release.columns import SCHEMA

S, U, T, E = Outcome.SOLVED, Outcome.UNSOLVED, Outcome.TAMPERED, Outcome.GRADER_ERROR


def record(
    patch: Patch, run: int, outcome: Outcome, passed: str | None = "p", **changes: Any
) -> ValidationRecord:
    made = ValidationRecord(
        instance_id="a",
        patch=patch,
        run=run,
        outcome=outcome,
        inputs_sha256="0",
        image_digest="sha256:1",
        failed=0 if outcome is S else 1,
        failed_tests=() if outcome is S else ("t.py::a",),
        passed_sha256=passed if outcome is not E else None,
        wall_s=0.5,
        error="no tree" if outcome is E else None,
    )
    return replace(made, **changes)


def task(gold: list[Outcome], empty: list[Outcome], instance_id: str = "a") -> list[ValidationRecord]:
    return [
        record(patch, run, outcome, instance_id=instance_id)
        for patch, outcomes in ((Patch.GOLD, gold), (Patch.EMPTY, empty))
        for run, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("gold", "empty", "reason"),
    [
        ([S, S], [U, U], None),
        ([S], [U], None),
        ([S], [T], None),
        ([U, U], [U, U], "gold_fails"),
        ([T, T], [U, U], "gold_fails"),
        ([S, S], [S, S], "empty_passes"),
        ([U, U], [S, S], "gold_fails_empty_passes"),
        ([S, U], [U, U], "flaky"),
        ([U, S], [S, S], "flaky"),
        ([S, S], [U, S], "flaky"),
        ([U, T], [U, U], "flaky"),
        ([S, E], [U, U], "grader_error"),
        ([E], [U], "grader_error"),
        ([S, S], [E, E], "grader_error"),
        ([U, U], [S, E], "grader_error"),
        ([S, U, E], [U, U, U], "flaky"),
    ],
)
def test_what_runs_say_about_a_task(gold: list[Outcome], empty: list[Outcome], reason: str | None) -> None:
    assert verdict(task(gold, empty)) == reason
    assert reason is None or reason in validated.REASONS


def test_runs_that_fail_in_different_tests_disagree() -> None:
    records = [*task([S, S], []), record(Patch.EMPTY, 0, U, "one"), record(Patch.EMPTY, 1, U, "another")]
    assert verdict(records) == "flaky"
    ended = [replace(each, passed_sha256=None) for each in task([S, S], [U, U])]
    assert verdict(ended) is None


outcomes = st.lists(st.sampled_from([S, U, T, E]), min_size=1, max_size=4)


@settings(max_examples=200)
@given(gold=outcomes, data=st.data())
def test_a_kept_task_is_right_in_every_run_and_the_order_does_not_matter(
    gold: list[Outcome], data: st.DataObject
) -> None:
    empty = data.draw(st.lists(st.sampled_from([S, U, T, E]), min_size=len(gold), max_size=len(gold)))
    records = task(gold, empty)
    reason = verdict(records)
    assert verdict(data.draw(st.permutations(records))) == reason
    assert (reason is None) == (set(gold) == {S} and (set(empty) == {U} or set(empty) == {T}))
    disagree = any(len(set(runs) - {E}) > 1 for runs in (gold, empty))
    assert (reason == "flaky") == disagree
    assert (reason == "grader_error") == (not disagree and E in gold + empty)


def test_every_run_must_be_there() -> None:
    records = task([S, S], [U, U]) + task([U, U], [U, U], "b")
    assert verdicts(records, 2) == {"a": None, "b": "gold_fails"}
    for runs in (1, 3):
        with pytest.raises(UserError, match=f"a was not validated in {runs} runs"):
            verdicts(records, runs)
    with pytest.raises(UserError, match="a was not validated in 2 runs"):
        verdicts(task([S, S], [U]), 2)


def test_the_log_goes_on_after_a_torn_line_and_knows_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "v" / "0.jsonl"
    log = ValidationLog(path)
    first, failed = record(Patch.GOLD, 0, S), record(Patch.EMPTY, 0, E)
    log.append(first)
    log.append(failed)
    with path.open("ab") as file:
        file.write(b'{"instance_id": "a", "pat')
    again = ValidationLog(path)
    assert again.get(first.key) == first
    assert again.done(first.key, "0")
    assert not again.done(first.key, "another image"), "a record of other inputs does not count"
    assert not again.done(failed.key, "0"), "a run without a verdict is made again"
    assert not again.done(("a", "gold", 1), "0")
    again.append(record(Patch.EMPTY, 0, U))
    assert ValidationLog(path).get(failed.key) == record(Patch.EMPTY, 0, U)
    assert path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize(
    "change",
    [{"outcome": "happy"}, {"patch": "silver"}, {"colour": "red"}, {"failed_tests": None}],
)
def test_a_damaged_record_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "0.jsonl"
    path.write_text(json.dumps({**record(Patch.GOLD, 0, S).to_dict(), **change}) + "\n")
    for read in (ValidationLog, lambda path: read_records([path])):
        with pytest.raises(UserError, match=r"0\.jsonl row 1 is"):
            read(path)


def test_a_run_that_two_logs_hold_is_refused(tmp_path: Path) -> None:
    for name in ("0", "1"):
        ValidationLog(tmp_path / name).append(record(Patch.GOLD, 0, S))
    with pytest.raises(UserError, match="a second time"):
        read_records([tmp_path / "0", tmp_path / "1"])


def test_the_filter_and_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [make_row(number) for number in range(4)]
    ids = [row["instance_id"] for row in rows]
    shard = write_shard(tmp_path / "a.parquet", rows)
    write_decisions(
        tmp_path / "test_count.tsv",
        Decisions("test_count", dict(zip(ids, [None, None, None, "too_many_tests"], strict=True))),
    )
    records = task([S], [U], ids[0]) + task([S], [S], ids[1]) + task([E], [U], ids[2])
    for number in range(2):
        log = ValidationLog(tmp_path / f"{number}.jsonl")
        for each in records[number::2]:
            log.append(each)
    logs = [str(tmp_path / f"{number}.jsonl") for number in range(2)]
    flags = ["--shards", str(shard), "--previous", str(tmp_path / "test_count.tsv"), "--runs", "1"]
    out = tmp_path / "validated.tsv"
    load_script("filter_validated").main([*flags, "--logs", *logs, "--out", str(out)])
    assert read_decisions(out).reasons == dict(zip(ids, [None, "empty_passes", "grader_error"], strict=False))
    assert "3 rows, 1 kept, 1 empty_passes, 1 grader_error" in capsys.readouterr().out
    with pytest.raises(UserError, match=rf"{ids[0]} was not validated"):
        validated.reasons(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), {})


@settings(max_examples=60)
@given(ids=st.sets(st.text(max_size=4), max_size=30), parts=st.integers(1, 9))
def test_parts_share_the_tasks_out_evenly_and_keep_neighbours_together(ids: set[str], parts: int) -> None:
    from lightning_smith.grading.validate import part_of

    pieces = [part_of(ids, part, parts) for part in range(parts)]
    assert sorted(name for piece in pieces for name in piece) == sorted(ids)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    assert [name for piece in pieces for name in sorted(piece)] == sorted(ids)
