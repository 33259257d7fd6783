"""The tiny experiment through every rule, killed at several moments and run again. The tests build on each other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tiny_workflow import Workflow

from lightning_smith.files import read_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def service(workflow: Workflow, words: str) -> psutil.Process:
    return next(process for process in workflow.processes() if words in " ".join(process.cmdline()))


def test_a_killed_run_goes_on_and_a_living_one_holds_its_folder(workflow: Workflow) -> None:
    live = workflow.work / "probe" / "live.jsonl"
    first = workflow.start("probe")
    wait_for(lambda: lines(live) >= 5 or first.poll() is not None, 300, "five rollouts")
    assert first.poll() is None, (workflow.folder / "run.log").read_text()[-2000:]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    kept = live.read_bytes()

    second = workflow.start("probe", log="second.log")
    time.sleep(4)
    assert second.poll() is None, (workflow.folder / "second.log").read_text()[-2000:]
    refused = workflow.run("probe")
    assert refused.returncode == 1
    assert f"process {second.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert second.wait(timeout=400) == 0, (workflow.folder / "second.log").read_text()[-2000:]

    assert live.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    seen = Counter(
        (row["instance_id"], row["sample"]) for row in read_jsonl(live) if row["outcome"] != "infra"
    )
    assert len(seen) == 40
    assert set(seen.values()) == {1}, "a rollout with a verdict ran twice"


def test_a_dead_service_fails_its_stage_within_seconds_and_by_name(workflow: Workflow) -> None:
    run = workflow.start("train_dense", log="train.log")
    wait_for(
        lambda: list(workflow.work.glob("train/dense/*/rollouts_step_1.jsonl")), 300, "the first rollouts"
    )
    service(workflow, "agentlightning.server").kill()
    killed = time.monotonic()
    assert run.wait(timeout=60) != 0
    assert time.monotonic() - killed < 30
    log = (workflow.folder / "train.log").read_text()
    assert "gateway" in next(line for line in log.splitlines() if line.startswith("error:"))
    wait_for(lambda: not workflow.processes(), 10, "the other services to end")


def test_training_goes_on_after_a_kill_between_two_saves(workflow: Workflow) -> None:
    run = workflow.start("train_dense", log="train.log")
    step_1 = workflow.results / "train/dense/step_1.json"
    wait_for(lambda: step_1.exists() or run.poll() is not None, 300, "the first checkpoint")
    wait_for(
        lambda: list(workflow.work.glob("train/dense/*/rollouts_step_2.jsonl")) or run.poll() is not None,
        120,
        "rollouts of the second step",
    )
    assert run.poll() is None, (workflow.folder / "train.log").read_text()[-2000:]
    before = step_1.read_bytes()
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    again = workflow.run("train_dense")
    assert again.returncode == 0, again.stderr[-2000:]
    assert step_1.read_bytes() == before
    metrics = [
        row["step"] for path in workflow.work.glob("train/dense/*/metrics.jsonl") for row in read_jsonl(path)
    ]
    assert metrics == [1, 2]


def test_the_rest_runs_to_the_table_and_every_count_sums(workflow: Workflow) -> None:
    run = workflow.run("all", timeout_s=800)
    assert run.returncode == 0, run.stderr[-3000:]
    for counts in workflow.results.glob("eval/*/step_*/counts.json"):
        summary = json.loads(counts.read_text())
        assert sum(summary["counts"].values()) == summary["instances"] * summary["samples"] == 16
    table = (workflow.results / "tables/main.md").read_text()
    assert "47.8" in table and "dense" in table and "moe" in table
    assert {path.name for path in (workflow.results / "figures").iterdir()} == {
        "funnel.svg",
        "reward.svg",
        "evaluation.svg",
    }
    assert not workflow.processes()


def test_a_finished_run_has_nothing_to_do_even_after_a_power_cut(workflow: Workflow) -> None:
    metadata = [path for path in (workflow.folder / ".snakemake/metadata").rglob("*") if path.is_file()]
    newest = max(metadata, key=lambda path: path.stat().st_mtime)
    newest.write_bytes(b"")
    (workflow.folder / ".snakemake/incomplete" / newest.name).write_text("{}")
    written = {path: path.stat().st_mtime_ns for path in workflow.results.rglob("*") if path.is_file()}
    run = workflow.run("all")
    assert run.returncode == 0
    assert "Nothing to be done" in run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert {
        path: path.stat().st_mtime_ns for path in workflow.results.rglob("*") if path.is_file()
    } == written


def test_no_artefact_holds_a_key(workflow: Workflow) -> None:
    """Keys are random by run; what is looked for is the name under which one would be written."""
    for folder in (workflow.data, workflow.results):
        for path in folder.rglob("*"):
            if path.is_file():
                assert b"AGL_KEY" not in path.read_bytes(), path
