"""The data funnel with every optional filter on, through the real rules, killed in the middle and run again."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tiny_workflow import Workflow

from lightning_smith.core.files import read_jsonl
from lightning_smith.funnel.filters.decisions import read_decisions
from lightning_smith.funnel.ledger import read_funnel
from lightning_smith.grading.profiles import read_profiles

pytestmark = [pytest.mark.e2e, pytest.mark.whole_run, pytest.mark.timeout(900)]


def live_logs(workflow: Workflow) -> list[Path]:
    """The logs as the runs write them, in the folder of the settings that decide their records."""
    return list((workflow.work / "validation").glob("*/*.jsonl"))


def live_lines(workflow: Workflow) -> int:
    return sum(path.read_bytes().count(b"\n") for path in live_logs(workflow))


def test_every_row_is_certified_or_dropped_with_a_reason_and_no_test_runs_twice(certified: Workflow) -> None:
    first = certified.start("prepare_data")
    deadline = time.monotonic() + 600
    while live_lines(certified) < 5:
        assert first.poll() is None, (certified.folder / "run.log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    run = certified.run("prepare_data")
    assert run.returncode == 0, run.stderr[-3000:]

    kept = read_decisions(certified.data / "filters" / "gradable.tsv").kept
    assert len(kept) > 5
    live = [row for path in live_logs(certified) for row in read_jsonl(path)]
    keys = [(row["instance_id"], row["patch"], row["run"]) for row in live]
    assert len(keys) == len(set(keys)) == 4 * len(kept), "two patches in two runs each, none of them twice"
    finished = [row for path in _logs(certified) for row in read_jsonl(path)]
    assert sorted(map(str, finished)) == sorted(map(str, live))

    ledger = read_funnel(certified.data / "funnel.tsv")
    assert list(dict.fromkeys(row.filter for row in ledger)) == [
        "release", "statement", "branch", "test_count", "fail_to_pass", "bug_in_tests", "overlap",
        "gradable", "validated",
    ]  # fmt: skip
    assert all(row.kept + row.dropped == above.kept for above, row in pairwise(ledger))
    # The tasks of the miniature were made by validating them: none is wrong.
    certifying = [row for row in ledger if row.filter in ("gradable", "validated")]
    assert [row.reason for row in certifying] == [
        "no_profile", "not_python", "odd_test_id",
        "grader_error", "flaky", "gold_fails_empty_passes", "gold_fails", "empty_passes",
    ]  # fmt: skip
    assert {row.dropped for row in certifying} == {0}
    assert "| validated |" in (certified.data / "README.md").read_text()
    profiles = read_profiles(certified.data / "profiles.json").values()
    assert {profile.language for profile in profiles} == {"python"}


def _logs(workflow: Workflow) -> list[Path]:
    return [workflow.data / "validation" / f"{part}.jsonl" for part in range(2)]
