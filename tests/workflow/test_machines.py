"""A wrong machine is told what to run where, in order; every command works there with what is brought over."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkout import copy_checkout
from dry_runs import dry_run
from release_placeholders import place_release

COMMAND = re.compile(
    r"\((\d)\) on (.+?): (?:bring (.+?) there with their times \(`rsync -aR`\), and )?run `(.+?)`"
)
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
NOWHERE = {**os.environ, "PATH": PATH, "DOCKER_HOST": "unix:///nowhere.sock", "KUBECONFIG": "/nowhere"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = copy_checkout(tmp_path_factory.mktemp("clone") / "repo")
    place_release(clone)
    return clone


def refusal(folder: Path, *arguments: str) -> str:
    """What a host without Docker, cluster and GPUs answers."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    run = subprocess.run(command, cwd=folder, env=NOWHERE, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    (error,) = (line for line in run.stderr.splitlines() if line.startswith("error: "))
    return error


def planned(folder: Path, log: Path, command: str) -> dict[str, list[str]]:
    """Outputs by rule of the jobs that a printed command plans."""
    words = shlex.split(command)
    assert words[:3] == ["uv", "run", "snakemake"]
    code, said = dry_run("--summary", *words[3:], cwd=folder, log=log)
    assert code == 0, said[-2000:]
    rows = [line.split("\t") for line in said.splitlines() if line.count("\t") == 5]
    assert rows[0][0] == "output_file"
    jobs: dict[str, list[str]] = {}
    for output, _, rule, _, _, plan in rows[1:]:
        if plan != "no update":
            jobs.setdefault(rule, []).append(output)
    return jobs


ON_A = {"prepare_image", "list_branches", "probe", "predict", "grade", "grade_control"}
RULES_OF = {
    "machine A (Docker and Kubernetes)": ON_A,
    "machine B (4 B200 GPUs)": {"train_segment", "export_checkpoint"},
}


def test_every_printed_command_works_where_it_is_to_run(clone: Path, tmp_path: Path) -> None:
    """Each is planned in a folder of its machine, after the outputs of the ones before it have been brought over."""
    steps = COMMAND.findall(refusal(clone, "results_table"))
    assert [step[0] for step in steps] == ["1", "2", "3"]
    assert [step[1][: len("machine A")] for step in steps] == ["machine A", "machine B", "machine A"]
    assert [step[2] for step in steps] == ["", "data, results", "data, results, work/export"]
    folders: dict[str, Path] = {}
    before: Path | None = None
    for _, machine, folders_brought, command in steps:
        if machine not in folders:
            folders[machine] = copy_checkout(tmp_path / machine[len("machine ")])
            if before is None:
                place_release(folders[machine])
        here = folders[machine]
        for name in folders_brought.split(", ") if before is not None else []:
            if (before / name).exists():
                subprocess.run(["cp", "-a", "--parents", name, str(here)], cwd=before, check=True)
        jobs = planned(here, tmp_path / "log", command)
        other = set().union(*(rules for name, rules in RULES_OF.items() if name != machine))
        assert not other & set(jobs), f"`{command}` plans jobs of another machine"
        assert RULES_OF[machine] & set(jobs), f"`{command}` does nothing there"
        now = time.time()
        for output in (here / output for outputs in jobs.values() for output in outputs):
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
            os.utime(output, (now, now))
        before = here


def test_images_alone_are_asked_of_a_machine_with_docker(clone: Path) -> None:
    error = refusal(clone, "prepare_images")
    assert "on a machine with Docker: run `uv run snakemake --profile k8s -- prepare_images`" in error


@pytest.mark.parametrize("target", ["prepare_images", "probe"])
def test_the_configuration_is_a_part_of_the_command(clone: Path, target: str) -> None:
    """In a miniature every stage runs where Docker is: nothing more is asked of that machine."""
    files = ["--configfile", "config/mini.yaml", "config/mini-docker.yaml"]
    error = refusal(clone, "--profile", "mini", *files, "--config", "probe={tasks: 3}", "--", target)
    command = f"--profile mini {' '.join(files)} --config 'probe={{tasks: 3}}' -- {target}`"
    assert f"on a machine with Docker: run `uv run snakemake {command}" in error


def test_one_evaluation_asks_for_its_own_checkpoint_alone(clone: Path) -> None:
    error = refusal(clone, "--", "results/eval/moe/step_64/counts.json")
    assert "run `uv run snakemake --profile b200 -- results/export/moe/step_64.json`" in error
