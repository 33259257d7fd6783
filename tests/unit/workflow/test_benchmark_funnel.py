"""The synthetic release has the true shape, and the benchmark that reads it runs, at small size."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_smith.core.files import sha256_file
from lightning_smith.funnel.release_counts import count_release
from lightning_smith.release.columns import iter_batches
from lightning_smith.release.patches import edited_files
from lightning_smith.repositories.branches import LocalBranches, read_branches

ROOT = Path(__file__).parents[3]
ROWS = 1_500


def generate(out: Path, *flags: str) -> list[Path]:
    command = [sys.executable, "benchmarks/synthetic_release.py", "--out", str(out), "--rows", str(ROWS)]
    subprocess.run([*command, *flags], cwd=ROOT, check=True, capture_output=True)
    return sorted((out / "data").glob("train-*.parquet"))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release")
    generate(out, "--images", str(out / "images"))
    return out


def test_shape(release: Path) -> None:
    shards = sorted((release / "data").glob("train-*.parquet"))
    assert [path.name for path in shards] == [f"train-{i:05d}-of-00011.parquet" for i in range(11)]
    tests, size, shared = [], 0, 0
    for batch in iter_batches(shards, ("FAIL_TO_PASS", "PASS_TO_PASS", "patch", "problem_statement")):
        lengths = [batch.column(name).value_lengths().to_numpy() for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
        assert lengths[0].min() >= 1
        tests += sum(lengths).tolist()
        size += batch.nbytes
        for patch in batch.column("patch").to_pylist():
            (path,) = edited_files(patch)
            shared += path == "xarray/core/dataset.py"
    assert np.percentile(tests, [50, 75, 90, 95, 100]) == pytest.approx(
        [415, 1151, 2657, 5060, 22028], rel=0.01
    )
    assert size / ROWS * 59_136 == pytest.approx(5.2e9, rel=0.08)
    assert shared > 0
    counts = count_release(shards).counts
    assert (counts["rows"], counts["images"], counts["repositories"]) == (ROWS, 222, 222)
    assert counts["empty_statements"] == round(18_033 * ROWS / 59_136) == 457
    assert counts["null"] > 0 and counts["whitespace"] > 0


def test_the_repositories_have_the_branches_that_the_lists_name(release: Path) -> None:
    listed = read_branches(sorted((release / "branches").iterdir()))
    lister = LocalBranches(release / "images")
    assert len(listed) == 222 and sum(map(len, listed.values())) == ROWS - round(1_265 * ROWS / 59_136)
    for name in sorted(listed)[:5]:
        assert lister.list_branches(name).branches == listed[name]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(release: Path, tmp_path: Path) -> None:
    again = generate(tmp_path / "again")
    other = generate(tmp_path / "other", "--seed", "1")
    first = [sha256_file(release / "data" / path.name) for path in again]
    assert first == [sha256_file(path) for path in again]
    assert first != [sha256_file(path) for path in other]


def test_both_sides_agree_and_ours_takes_less_memory(tmp_path: Path) -> None:
    with_datasets = ["uv", "run", "--frozen", "--no-sync", "--with", "datasets==5.0.1"]
    if (
        not shutil.which("uv")
        or subprocess.run(
            [*with_datasets, "python", "-c", "import datasets"], cwd=ROOT, capture_output=True
        ).returncode
    ):
        pytest.skip("needs uv and a package index that has datasets 5.0.1")
    command = [
        *with_datasets,
        "python",
        "benchmarks/funnel.py",
        "--rows",
        str(ROWS),
        "--scratch",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["rows"] == ROWS == figures["kept"] + sum(figures["dropped"].values())
    assert 0 < figures["memory_ratio"] < 1 and 50 < figures["peak_mb"] < 500 and figures["speedup"] > 0
    assert list(tmp_path.iterdir()) == []
