"""At full size everything that looks into images or runs in them waits for their preparation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import copy_checkout
from dry_runs import dry_run
from release_placeholders import RELEASE, VERIFIED, place_release

K8S = ("--profile", "k8s")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which the release has been downloaded, and its images are known."""
    clone = copy_checkout(tmp_path_factory.mktemp("clone") / "repo")
    place_release(clone)
    return clone


def jobs_of(said: str) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", said, re.M)}


ALL, HELDOUT = len(RELEASE), len(VERIFIED)


def test_the_plan_of_the_evaluation_has_every_image(checkout: Path, tmp_path: Path) -> None:
    code, said = dry_run(
        *K8S, "--quiet", "rules", "--", "evaluate_verified", cwd=checkout, log=tmp_path / "log"
    )
    assert code == 0, said[-2000:]
    expected = {
        "agent_layer": 1,
        "prepare_image": ALL + HELDOUT,
        "list_branches": ALL,
        "predict": 11,
        "grade": 11,
    }
    jobs = jobs_of(said)
    assert {name: jobs.get(name) for name in expected} == expected


def test_images_lead_to_branches_and_to_every_stage_that_runs_in_them(checkout: Path, tmp_path: Path) -> None:
    code, said = dry_run(*K8S, "--rulegraph", "dot", "--", "all", cwd=checkout, log=tmp_path / "log")
    assert code == 0, said[-2000:]
    names = dict(re.findall(r'(\d+)\[label = "(\w+)', said))
    edges = {(names[start], names[end]) for start, end in re.findall(r"(\d+) -> (\d+)", said)}
    after_images = {end for start, end in edges if start == "prepare_image"}
    assert after_images >= {
        "images_table",
        "list_branches",
        "probe",
        "train_segment",
        "predict",
        "grade",
        "grade_control",
    }
    assert ("list_branches", "filter_branch") in edges
    assert ("agent_layer", "prepare_image") in edges


@pytest.mark.parametrize(("target", "sets"), [("prepare_data", 1), ("probe", 1), ("evaluate_verified", 2)])
def test_a_fresh_clone_plans_its_images_before_it_knows_which(tmp_path: Path, target: str, sets: int) -> None:
    clone = copy_checkout(tmp_path / "repo")
    code, said = dry_run(*K8S, "--quiet", "rules", "--", target, cwd=clone, log=tmp_path / "log")
    assert code == 0, said[-2000:]
    assert jobs_of(said).items() >= {"list_image_names": sets, "images_table": sets}.items()


def test_preparation_that_no_plan_shows_yet_is_refused_before_the_download(tmp_path: Path) -> None:
    """Which images there are is known once the release is there; that they need Docker is known at once."""
    clone = copy_checkout(tmp_path / "repo")
    nowhere = {**os.environ, "DOCKER_HOST": "unix:///nowhere.sock"}
    command = [sys.executable, "-m", "snakemake", "--", "prepare_data"]
    run = subprocess.run(command, cwd=clone, env=nowhere, capture_output=True, text=True, timeout=120)
    (error,) = (line for line in run.stderr.splitlines() if line.startswith("error: "))
    assert "list_image_names must run on a machine with Docker" in error
    assert "run `uv run snakemake --profile k8s -- prepare_data`" in error
    assert not (clone / "data").exists()
