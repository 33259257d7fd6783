"""Counts of a release against what it must have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from swe_smith_rows import make_row, write_shard

from lightning_smith.core.errors import UserError
from lightning_smith.core.provenance import version_of
from lightning_smith.funnel.release_counts import count_release, describe_release

ROOT = Path(__file__).parents[3]
STATEMENTS = (None, "", " \n", "\u200b", "a bug", "another")
COUNTS = {
    "rows": 6, "empty_statements": 3, "null": 1, "empty": 1, "whitespace": 1, "invisible": 1, "images": 2,
    "repositories": 3,
}  # fmt: skip


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    rows = [
        make_row(n, problem_statement=text, image_name=f"swesmith/{n % 2}", repo=f"swesmith/r{n % 3}")
        for n, text in enumerate(STATEMENTS)
    ]
    return [write_shard(tmp_path / "a.parquet", rows[:4]), write_shard(tmp_path / "b.parquet", rows[4:])]


def test_counts(shards: list[Path]) -> None:
    found = count_release(shards)
    assert found.counts == COUNTS
    assert found.repositories_by_language == {"Python": 3}


def test_a_repository_has_the_language_of_most_files_that_its_patches_edit(tmp_path: Path) -> None:
    def patch(path: str, line: str = "x") -> str:
        return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{line}\n+y\n"

    patches = {
        "swesmith/a": [patch("m.go"), patch("docs/b.py"), patch("k x.go")],
        "swesmith/b": [patch("m.py"), patch("Makefile"), "no patch"],
        "swesmith/c": ["no patch"],
        "swesmith/d": [patch("m.zig") + patch("n.zig")],
        "swesmith/e": [
            'diff --git "a/Pr\\303\\274fung eins.rs" "b/Pr\\303\\274fung eins.rs"\n'
            '--- "a/Pr\\303\\274fung eins.rs"\n+++ "b/Pr\\303\\274fung eins.rs"\n@@ -1 +1 @@\n-x\n+y\n'
        ],
    }
    rows = [(repo, text) for repo, texts in patches.items() for text in texts]
    shard = write_shard(
        tmp_path / "a.parquet", [make_row(n, repo=repo, patch=text) for n, (repo, text) in enumerate(rows)]
    )
    assert count_release([shard]).repositories_by_language == {
        "Go": 1,
        "Python": 1,
        "Rust": 1,
        "another language": 2,
    }


def test_a_release_as_expected(shards: list[Path]) -> None:
    expected = {"rows": 6, "empty_statements": 3, "images": None}
    found = describe_release(shards, expected, allow_other=())
    assert found == {
        "counts": COUNTS,
        "repositories_by_language": {"Python": 3},
        "expected": expected,
        "differences": [],
    }


def test_every_difference_is_named_with_both_numbers(shards: list[Path]) -> None:
    expected = {"rows": 7, "empty_statements": 0, "images": 2}
    with pytest.raises(UserError) as caught:
        describe_release(shards, expected, allow_other=())
    assert "has 6 rows instead of 7, 3 empty statements instead of 0: " in str(caught.value)
    assert "release.allow_other_counts" in str(caught.value)
    allowed = describe_release(shards, expected, allow_other=("rows", "empty_statements"))
    assert allowed["differences"] == ["6 rows instead of 7", "3 empty statements instead of 0"]


def test_what_may_differ_is_said_count_by_count(shards: list[Path]) -> None:
    with pytest.raises(UserError) as caught:
        describe_release(shards, {"rows": 7, "empty_statements": 0, "images": 2}, allow_other=("rows",))
    assert "has 3 empty statements instead of 0: " in str(caught.value)
    found = describe_release(
        shards, {"rows": 6, "empty_statements": 3, "images": 222}, allow_other=("images",)
    )
    assert found["differences"] == ["2 images instead of 222"]
    assert found["expected"]["images"] == 222


def test_a_count_of_others_stops_nothing() -> None:
    """The publication gives rows and empty statements; 222 images were counted by others."""
    release = yaml.safe_load((ROOT / "config.yaml").read_text())["release"]
    assert release["allow_other_counts"] == ["images"]


def test_two_images_that_share_a_key_are_refused(tmp_path: Path, shards: list[Path]) -> None:
    other = write_shard(tmp_path / "c.parquet", [make_row(9, image_name="other/1")])
    with pytest.raises(UserError, match="swesmith/1 and other/1 share the key 1"):
        count_release([*shards, other])


def test_the_script(tmp_path: Path, shards: list[Path]) -> None:
    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/release/check_release.py", "--shards", *map(str, shards), *flags]
        out = ["--out", str(tmp_path / "release.json")]
        return subprocess.run([*command, *out], cwd=ROOT, capture_output=True, text=True)

    refused = run("--images", "3")
    assert refused.returncode == 1 and refused.stderr.startswith(
        "error: the release has 2 images instead of 3: "
    )
    assert not (tmp_path / "release.json").exists()
    allowed = run("--images", "3", "--allow-other", "images")
    assert allowed.returncode == 0 and "warning: 2 images instead of 3" in allowed.stdout
    written = json.loads((tmp_path / "release.json").read_text())
    assert written["differences"] == ["2 images instead of 3"]
    assert written["code"] == version_of(ROOT)
