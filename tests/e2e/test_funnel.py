"""A release of the true shape and small count through the real rules: shards, git repositories, filters, candidates."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from checkout import copy_checkout

from lightning_smith.repositories.names import image_key

ROOT = Path(__file__).parents[2]
ROWS, SHARDS = 120, 3

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


class Funnel:
    """A clone, and a release in a folder with its images' repositories."""

    def __init__(self, root: Path) -> None:
        self.clone = copy_checkout(root / "clone")
        self.release = root / "re lease é"
        self.data = self.clone / "data/synthetic"
        self.images = images = self.clone / "work/synthetic/images"
        command = [sys.executable, "benchmarks/synthetic_release.py", "--out", str(self.release)]
        flags = ["--rows", str(ROWS), "--shards", str(SHARDS), "--images", str(images)]
        subprocess.run([*command, *flags], cwd=ROOT, check=True, capture_output=True)

    def run(
        self, *flags: str, target: str = "prepare_data", **changes: object
    ) -> subprocess.CompletedProcess[str]:
        """`snakemake <flags> <target>`; `changes` are of the section `release`."""
        release = {"dataset": "synthetic", "folder": str(self.release), "revision": None, "shards": SHARDS}
        counts = {"rows": ROWS, "empty_statements": 37, "images": 30}
        config = {
            "experiment": "synthetic",
            "dirs": {name: f"{name}/synthetic" for name in ("data", "work", "results")},
            "backends": {"hub": "folder", "images": "local"},
            "release": release | counts | changes,
            "filters": {"overlap": "file"},
            "evaluation": {"dataset": "synthetic-evaluation", "instances": 8},
        }
        (self.clone / "synthetic.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "snakemake", "--configfile", "synthetic.yaml", "--cores", "2"]
        return subprocess.run(
            [*command, *flags, "--", target],
            cwd=self.clone,
            env={**os.environ, "PYTHONPATH": str(self.clone)},
            capture_output=True,
            text=True,
            timeout=600,
        )


def jobs(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """How many jobs of each rule a run planned at its start."""
    return {
        name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    }


@pytest.fixture(scope="module")
def funnel(tmp_path_factory: pytest.TempPathFactory) -> Funnel:
    funnel = Funnel(tmp_path_factory.mktemp("funnel"))
    refused = funnel.run(rows=ROWS + 1)
    assert refused.returncode == 1
    assert f"the release has {ROWS} rows instead of {ROWS + 1}" in refused.stdout + refused.stderr
    assert not (funnel.data / "funnel.tsv").exists()
    done = funnel.run()
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "check_release" in jobs(done) and "download_shard" not in jobs(done), "what had been fetched stays"
    return funnel


def ledger(funnel: Funnel) -> list[dict[str, str]]:
    with (funnel.data / "funnel.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_the_ledger_alone_accounts_for_every_row(funnel: Funnel) -> None:
    rows = ledger(funnel)
    assert rows[0] == {"filter": "release", "kept": str(ROWS), "dropped": "0", "reason": "-"}
    for above, row in pairwise(rows):
        assert int(row["kept"]) + int(row["dropped"]) == int(above["kept"])
        assert int(row["kept"]) >= 0 and int(row["dropped"]) >= 0
    assert int(rows[-1]["kept"]) + sum(int(row["dropped"]) for row in rows) == ROWS
    assert list(dict.fromkeys(row["filter"] for row in rows)) == [
        "release", "statement", "branch", "test_count", "fail_to_pass", "bug_in_tests", "overlap",
    ]  # fmt: skip


def test_every_row_went_where_plain_python_sends_it(funnel: Funnel) -> None:
    listed = [json.loads(path.read_text()) for path in (funnel.release / "branches").glob("*.json")]
    branches = {row["image_name"]: set(row["branches"]) for row in listed}
    release = [
        row
        for path in sorted((funnel.release / "data").glob("train-*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    dropped: Counter[str] = Counter()
    missing_of_all, kept = 0, []
    for row in release:
        missing = row["instance_id"] not in branches[row["image_name"]]
        missing_of_all += missing
        if not (row["problem_statement"] or "").strip():
            dropped["statement"] += 1
        elif missing:
            dropped["branch"] += 1
        elif len({*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]}) > 200:
            dropped["test_count"] += 1
        elif "b/xarray/core/dataset.py" in row["patch"]:
            dropped["overlap"] += 1
        else:
            kept.append(row)
    counted: Counter[str] = Counter()
    for row in ledger(funnel):
        counted[row["filter"]] += int(row["dropped"])
    assert +counted == dropped and dropped["statement"] == 37
    candidates = pq.read_table(funnel.data / "candidates.parquet").to_pylist()
    assert candidates == sorted(kept, key=lambda row: row["instance_id"]) and candidates
    readings = json.loads((funnel.data / "branch_readings.json").read_text())
    assert readings == {"left_rows": dropped["branch"], "all_rows": missing_of_all}


def test_the_page_of_the_run(funnel: Funnel) -> None:
    text = (funnel.data / "README.md").read_text()
    assert (
        f"{ROWS} rows, 30 images, 30 repositories" in text
        and "30 Python (the published description says 128" in text
    )
    assert "| pydata/xarray | 8 |" in text
    sums = (funnel.release / "SHA256SUMS").read_text()
    for line in filter(None, sums.split("\n")):
        digest, _, name = line.partition("  ")
        assert "test-" in name or digest in text
    record = json.loads((funnel.data / "raw/train-00000-of-00003.parquet.json").read_text())
    assert record["sha256"] in sums and record["file"] == "data/train-00000-of-00003.parquet"


def test_a_second_run_does_what_is_missing_and_changes_nothing_else(funnel: Funnel) -> None:
    nothing = funnel.run()
    assert nothing.returncode == 0 and "Nothing to be done" in nothing.stdout + nothing.stderr
    before = {path.name: path.read_bytes() for path in funnel.data.iterdir() if path.is_file()}
    for name in ("raw/train-00001-of-00003.parquet", "candidates.parquet", "funnel.tsv"):
        (funnel.data / name).unlink()
    again = funnel.run()
    assert again.returncode == 0, again.stderr[-2000:]
    assert jobs(again)["download_shard"] == 1 and "filter_statement" in jobs(again)
    assert {path.name: path.read_bytes() for path in funnel.data.iterdir() if path.is_file()} == before


def test_the_images_of_ones_own_release_are_its_owners(funnel: Funnel) -> None:
    """None of the miniature is built for them, and none is written over one that has the same key."""
    plan = funnel.run("-n", target="probe")
    assert plan.returncode == 0, plan.stderr[-2000:]
    assert jobs(plan)["probe"] == 1
    assert not jobs(plan).keys() & {"build_image", "fetch_sdist", "build_release", "build_heldout"}
    sources = (ROOT / "assets/miniature/sources.tsv").read_text()
    assert "addict" in sources
    theirs = funnel.run(
        "-n", target="work/synthetic/images/swesmith.x86_64.pypi_1776_addict.b3b2210e/image.json"
    )
    assert theirs.returncode != 0 and "MissingRule" in theirs.stdout + theirs.stderr

    about = json.loads(next(funnel.images.glob("*/image.json")).read_text())
    folder = funnel.images / image_key(about["image_name"])
    folder.rename(folder.with_name("elsewhere"))
    refused = funnel.run("-n")
    said = [line for line in (refused.stdout + refused.stderr).split("\n") if line.startswith("error: ")]
    assert refused.returncode == 1 and len(said) == 1 and "Traceback" not in refused.stderr
    assert (
        f"1 of 30 images of the release have no git repository on disk, the first is {about['image_name']}"
        in said[0]
    )
    folder.with_name("elsewhere").rename(folder)


def test_a_release_with_other_counts_says_so_on_its_page(funnel: Funnel) -> None:
    done = funnel.run(rows=ROWS + 1, allow_other_counts=["rows"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        f"**Other counts than configured**: {ROWS} rows instead of {ROWS + 1}"
        in (funnel.data / "README.md").read_text()
    )
