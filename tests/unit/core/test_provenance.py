"""Manifests say which code wrote them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lightning_smith.core.files import read_json
from lightning_smith.core.provenance import code_version, version_of, write_manifest

ROOT = Path(__file__).parents[3]
UNKNOWN = {"commit": None, "dirty": None}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "lightning_smith").mkdir(parents=True)
    (root / "lightning_smith/a.py").write_text("a = 1\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def head(root: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_clean_tree_has_its_commit(checkout: Path) -> None:
    assert version_of(checkout) == {"commit": head(checkout), "dirty": False}


@pytest.mark.parametrize(
    "name", ["lightning_smith/a.py", "lightning_smith/new.py", "config.yaml", "assets/tasks.jsonl", "uv.lock"]
)
def test_changed_and_new_code_is_dirty(checkout: Path, name: str) -> None:
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("a = 2\n")
    assert version_of(checkout) == {"commit": head(checkout), "dirty": True}


def test_what_a_run_leaves_makes_no_tree_dirty(checkout: Path) -> None:
    (checkout / "results").mkdir()
    (checkout / "results/x.json").touch()
    assert version_of(checkout)["dirty"] is False


def test_a_work_tree_beside_its_repository_is_read(checkout: Path) -> None:
    subprocess.run(["git", "worktree", "add", "-q", "../other"], cwd=checkout, check=True)
    assert version_of(checkout.parent / "other") == {"commit": head(checkout), "dirty": False}


def test_a_folder_without_git_of_its_own_has_none(checkout: Path, tmp_path: Path) -> None:
    assert version_of(tmp_path) == UNKNOWN
    assert version_of(checkout / "lightning_smith") == UNKNOWN


def test_a_manifest_says_what_wrote_it(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.json", {"step": 1})
    assert read_json(tmp_path / "m.json") == {"step": 1, "code": code_version()}


WRITTEN = {
    "lightning_smith/evaluation/grade.py": 2,
    "lightning_smith/evaluation/predict.py": 1,
    "lightning_smith/images/prepare.py": 1,
    "scripts/miniature/build_docker_image.py": 1,
    "scripts/release/check_release.py": 1,
    "scripts/train/export_checkpoint.py": 1,
    "scripts/probe/probe.py": 1,
    "scripts/probe/select_by_difficulty.py": 1,
    "scripts/probe/split.py": 1,
    "scripts/train/train_segment.py": 1,
}


def test_every_manifest_is_written_with_the_code() -> None:
    calls = {name: len(re.findall(r" write_manifest\(", (ROOT / name).read_text())) for name in WRITTEN}
    assert calls == WRITTEN
