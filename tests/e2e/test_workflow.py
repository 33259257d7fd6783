"""The tiny experiment through every rule, killed at several moments and run again. The tests build on each other."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_workflow import Workflow

from lightning_smith.agent.trajectory import trajectory_path
from lightning_smith.config.recipes import parse_recipe
from lightning_smith.core.files import read_jsonl
from lightning_smith.training.segments import task_order

GATEWAY = "lightning_smith.gateway.server"
CONTROLLER = "lightning_smith.gateway.runner"
POLICY = "lightning_smith.miniature.policy.server"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def service(workflow: Workflow, words: str) -> psutil.Process | None:
    """The oldest process whose command line has these words: rollouts forked from the controller have its own."""
    return min(workflow.processes(words), key=lambda process: process.create_time(), default=None)


def kill_service(workflow: Workflow, run: subprocess.Popen[bytes], words: str, name: str, log: str) -> None:
    """Kill a service of a run: the run must fail within seconds, name it, and leave nothing running."""
    process = service(workflow, words)
    assert process is not None, (workflow.folder / log).read_text()[-2000:]
    process.kill()
    killed = time.monotonic()
    assert run.wait(timeout=60) != 0
    assert time.monotonic() - killed < 45  # seconds, not the minutes of a timeout, on a busy machine too
    written = (workflow.folder / log).read_text()
    assert name in next(line for line in written.splitlines() if line.startswith("error:"))
    assert "Traceback" not in written
    ended = psutil.wait_procs(workflow.processes(), timeout=30)
    assert not ended[1], [f"{process} {' '.join(process.cmdline())}" for process in ended[1]]


def test_a_killed_run_goes_on_and_a_living_one_holds_its_folder(workflow: Workflow) -> None:
    def lives() -> list[Path]:
        return list(workflow.work.glob("probe/*/rollouts.jsonl"))

    def wait_for_four_more(run: subprocess.Popen[bytes]) -> None:
        """More than other runs have left, so that this one has begun its stage."""
        before = lines(lives())
        wait_for(lambda: lines(lives()) >= before + 4 or run.poll() is not None, 300, "four rollouts")

    unserved = workflow.start("probe", log="unserved.log")
    wait_for_four_more(unserved)
    kill_service(workflow, unserved, POLICY, "policy", "unserved.log")

    stopped = workflow.start("probe", log="stopped.log")
    wait_for_four_more(stopped)
    stopped.terminate()  # this process alone: its stage has services and rollouts
    assert stopped.wait(timeout=45) == 1, (workflow.folder / "stopped.log").read_text()[-2000:]
    assert not psutil.wait_procs(workflow.processes(), timeout=10)[1]

    first = workflow.start("probe")
    wait_for_four_more(first)
    assert first.poll() is None, (workflow.folder / "run.log").read_text()[-2000:]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    (live,) = lives()
    kept = live.read_bytes()

    second = workflow.start("probe", log="second.log")
    lock = workflow.folder / ".snakemake" / "lightning-smith.lock"
    wait_for(lambda: f'"pid": {second.pid}' in lock.read_text(), 60, "the second run's lock")
    second.send_signal(signal.SIGSTOP)  # so that it is still there however long the other takes to start
    refused = workflow.run("probe")
    second.send_signal(signal.SIGCONT)
    assert refused.returncode == 1
    assert f"process {second.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert second.wait(timeout=400) == 0, (workflow.folder / "second.log").read_text()[-2000:]

    assert live.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    seen = Counter(
        (row["instance_id"], row["sample"]) for row in read_jsonl(live) if row["outcome"] != "infra"
    )
    assert len(seen) == 64
    assert set(seen.values()) == {1}, "a rollout with a verdict ran twice"


def test_a_dead_service_fails_its_stage_within_seconds_and_by_name(workflow: Workflow) -> None:
    run = workflow.start("train_dense", log="train.log")
    wait_for(
        lambda: list(workflow.work.glob("train/dense/*/rollouts_step_1.jsonl")) or run.poll() is not None,
        300,
        "the first rollouts",
    )
    kill_service(workflow, run, GATEWAY, "gateway", "train.log")


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
    rows = trained_steps(workflow, "dense")
    assert all(row["dropped_groups"] == row["masked_rollouts"] == 0 for row in rows)


def trained_steps(workflow: Workflow, recipe: str) -> list[dict[str, Any]]:
    """Metrics of both steps, after what holds for both recipes: two clipped updates and a score on validation tasks."""
    manifest = json.loads((workflow.results / f"train/{recipe}/step_2.json").read_text())
    metrics = manifest["metrics"]
    rows = metrics["steps"]
    assert [row["step"] for row in rows] == [1, 2]
    learnt = [row for row in rows if row["mixed_groups"]]
    assert learnt, "no group was mixed in two steps"
    for row in learnt:
        assert row["updates"] == 2 and 0 < row["clip_fraction"] < 1 and row["grad_norm"] > 0, row
    assert [(score["step"], score["rollouts"]) for score in metrics["validation"]] == [(1, 1), (2, 1)]
    assert all(score["reward"] in (0.0, 1.0) for score in metrics["validation"])
    return rows


def test_cispo_masks_rollouts_without_a_verdict_and_drops_a_group_of_one(workflow: Workflow) -> None:
    """In the second step a folder lies where some rollouts' trajectories would be written: their machine fails."""
    target = str(workflow.results.relative_to(workflow.folder) / "train/moe/step_1.json")
    run = workflow.run(target)
    assert run.returncode == 0, run.stderr[-2000:]
    first = json.loads((workflow.folder / target).read_text())
    fixed = ("adam_beta1", "adam_beta2", "weight_decay", "gradient_clip")
    settings = {key: value for key, value in first["settings"].items() if key not in fixed}
    recipe = parse_recipe("moe", settings)
    assert recipe.loss == "cispo_per_rollout_mean"

    tasks = [row["instance_id"] for row in read_jsonl(workflow.data / "train_dataset_mixed.jsonl")]
    order = task_order(tasks, recipe.tasks_per_step, recipe.seed)
    next(order)
    lines = (workflow.data / "probe/selection.tsv").read_text().splitlines()
    solved = {row["instance_id"]: int(row["solved"]) for row in csv.DictReader(lines, delimiter="\t")}
    dropped, *masked = sorted(next(order), key=lambda task: solved[task])
    lost = [(dropped, sample) for sample in range(1, recipe.rollouts_per_task)] + [
        (task, 0) for task in masked
    ]
    for task, sample in lost:
        folder = (workflow.folder / first["checkpoint"]).parent / "trajectories"
        path = trajectory_path(folder, task, sample)
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)

    run = workflow.run("train_moe")
    assert run.returncode == 0, run.stderr[-2000:]
    before, after = trained_steps(workflow, "moe")
    assert (before["dropped_groups"], before["masked_rollouts"]) == (0, 0)
    assert before["rollouts"] == before["trained_rollouts"] == after["rollouts"] == 24
    assert (after["dropped_groups"], after["masked_rollouts"]) == (1, len(lost)) == (1, 8)
    assert after["outcomes"]["infra"] == len(lost)
    assert after["trained_rollouts"] == 24 - len(lost) - 1, (
        "the one that the dropped group has left does not train"
    )
    assert after["gap_max_replay"] > 0
    assert after["mixed_groups"] <= len(masked)


def test_predictions_go_on_after_the_death_of_the_controller(workflow: Workflow) -> None:
    target = str(workflow.results.relative_to(workflow.folder) / "eval/dense/step_2/run.json")
    run = workflow.start(target, log="predict.log")
    wait_for(
        lambda: service(workflow, CONTROLLER) or run.poll() is not None, 200, "the controller of predictions"
    )
    kill_service(workflow, run, CONTROLLER, "controller", "predict.log")
    again = workflow.run(target)
    assert again.returncode == 0, again.stderr[-2000:]
    (log,) = workflow.work.glob("predict/dense/step_2/*/rollouts.jsonl")
    seen = Counter(
        (row["instance_id"], row["sample"]) for row in read_jsonl(log) if row["outcome"] != "infra"
    )
    assert len(seen) == 16
    assert set(seen.values()) == {1}, "a rollout that had ended ran again"


def test_the_rest_runs_to_the_table_and_every_count_sums(workflow: Workflow) -> None:
    run = workflow.run("all", timeout_s=800)
    assert run.returncode == 0, run.stderr[-3000:]
    for counts in workflow.results.glob("eval/*/step_*/counts.json"):
        summary = json.loads(counts.read_text())
        assert sum(summary["counts"].values()) == summary["instances"] * summary["samples"] == 16
        verdicts = read_jsonl(counts.with_name("verdicts.jsonl"))
        assert summary["suspicious"] == sum(bool(verdict["hits"]) for verdict in verdicts)
    table = (workflow.results / "tables/main.md").read_text()
    assert "47.8" in table and "dense" in table and "moe" in table and "| suspicious |" in table
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
