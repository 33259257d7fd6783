"""What a user may type that cannot work: one sentence with the form that does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import copy_checkout
from dry_runs import dry_run

from lightning_smith.sandbox.bwrap import find_bwrap

MINI = ("--profile", "mini")
DOCKER_FORM = "--configfile config/mini.yaml config/mini-docker.yaml"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fresh clone holds (committed files), without results of earlier runs."""
    return copy_checkout(tmp_path_factory.mktemp("clone") / "repo")


@pytest.fixture
def refusal(checkout: Path, tmp_path: Path):
    """The one sentence that a dry run with these arguments ends with."""

    def run(*arguments: str) -> str:
        code, said = dry_run(*arguments, cwd=checkout, log=tmp_path / "log")
        assert code == 1, said[-2000:]
        assert "Traceback" not in said, said[-2000:]
        (error,) = (line for line in said.splitlines() if line.startswith("error: "))
        return error

    return run


@pytest.mark.parametrize(
    ("target", "form"),
    [
        ("filter_validated", "--config 'filters={validated: true}'"),
        ("filter_overlap", "--config 'filters={overlap: file}'"),
        ("prepare_images", DOCKER_FORM),
        ("results/mini/eval/densse/step_0/counts.json", "the configuration has dense, moe"),
    ],
)
def test_a_target_of_another_configuration_is_told_which(refusal, target: str, form: str) -> None:
    assert form in refusal(*MINI, "--", target)


def test_only_the_miniatures_images_are_built(refusal) -> None:
    assert "`uv run snakemake --profile k8s -- prepare_images`" in refusal(
        "--profile", "k8s", "--", "build_docker_images"
    )


def test_a_configuration_that_replaces_the_miniatures_is_refused(refusal) -> None:
    assert DOCKER_FORM in refusal(*MINI, "--configfile", "config/mini-docker.yaml")


def test_the_command_line_is_looked_at_before_snakemake_acts_on_it(refusal) -> None:
    assert "write --config 'probe={tasks: 3}'" in refusal(*MINI, "--config", "probe.tasks=3")


def test_nested_values_of_the_command_line_have_their_types(checkout: Path, tmp_path: Path) -> None:
    values = ["--config", "filters={validated: true}", "recipes={dense: {learning_rate: 1e-4}}"]
    code, said = dry_run(*MINI, *values, "--", "prepare_data", cwd=checkout, log=tmp_path / "log")
    assert code == 0, said[-2000:]
    assert "filter_validated" in said


def test_a_folder_that_cannot_be_written_is_named(checkout: Path) -> None:
    mounts = ["--dev-bind", "/", "/", "--ro-bind", str(checkout), str(checkout), "--chdir", str(checkout)]
    command = [str(find_bwrap()), *mounts, sys.executable, "-m", "snakemake", *MINI, "-n"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert run.returncode == 1
    assert f"error: the folder {checkout} cannot be written" in run.stderr
    assert "Traceback" not in run.stderr
