"""The durable rollout log: torn lines, duplicates."""

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.gateway.rollout_log import RolloutLog, merge_logs

RECORD = RolloutRecord("t", 0, Outcome.SOLVED, 1.0, True, 3, 1, 1, 0.1, "m", "r", "sha256:0", 7)
INFRA = replace(RECORD, outcome=Outcome.INFRA, reward=None, resolved=None, error="gone\u2028twice")


def test_first_valid_record_counts(tmp_path: Path) -> None:
    log = RolloutLog(tmp_path / "a/log.jsonl")
    assert log.done() == set()
    assert log.append(INFRA) and log.done() == set()
    assert log.append(RECORD) and log.done() == {("t", 0)}
    late = replace(RECORD, outcome=Outcome.UNSOLVED, reward=0.0, resolved=False)
    assert not log.append(late) and not log.append(INFRA)
    again = RolloutLog(log.path)
    assert again.records() == [RECORD] and again.done() == {("t", 0)}
    assert log.path.read_bytes().count(b"\n") == 2


def test_torn_line_is_cut(tmp_path: Path) -> None:
    log = RolloutLog(tmp_path / "log.jsonl")
    log.append(RECORD)
    log.append(replace(RECORD, sample=1))
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-10])
    log = RolloutLog(log.path)
    assert log.done() == {("t", 0)}
    log.append(replace(RECORD, sample=1))
    assert log.path.read_bytes() == whole


def test_merged_logs_hold_each_rollout_once(tmp_path: Path) -> None:
    first, second = RolloutLog(tmp_path / "1.jsonl"), RolloutLog(tmp_path / "2.jsonl")
    first.append(replace(RECORD, sample=1))
    second.append(RECORD)
    assert [r.sample for r in merge_logs([first.path, second.path])] == [0, 1]
    with pytest.raises(UserError, match="a second time"):
        merge_logs([first.path, first.path])
