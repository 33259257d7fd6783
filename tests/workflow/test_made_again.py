"""What a finished folder makes again after a file is gone, as docs/architecture.md says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from checkout import copy_checkout
from release_placeholders import place_release
from test_machines import planned

PLAN = "uv run snakemake --profile k8s"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which everything up to the split is there, all of one age and without content."""
    clone = copy_checkout(tmp_path_factory.mktemp("finished") / "repo")
    place_release(clone)
    now = time.time() + 60  # plans write what is known of images
    jobs = planned(clone, clone.parent / "log", f"{PLAN} -- split prepare_data")
    for output in (clone / output for outputs in jobs.values() for output in outputs):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
        os.utime(output, (now, now))
    return clone


@pytest.mark.parametrize(
    ("gone", "targets", "made"),
    [
        ("data/filters/statement.tsv", "split prepare_data", set()),
        ("data/candidates.parquet", "split", set()),
        ("data/filters/statement.tsv", "data/filters/statement.tsv", {"filter_statement"}),
        ("data/split.json", "split", {"split"}),
        (
            "data/candidates.parquet",
            "split prepare_data",
            {
                "collect_candidates",
                "describe_data",
                "find_references",
                "probe",
                "select_by_difficulty",
                "split",
            },
        ),
    ],
    ids=["between", "between, large", "by name", "of the target", "with all after it"],
)
def test_a_file_that_is_gone_is_made_again_where_it_is_asked_for(
    finished: Path, tmp_path: Path, gone: str, targets: str, made: set[str]
) -> None:
    (finished / gone).rename(tmp_path / "gone")
    try:
        assert set(planned(finished, tmp_path / "log", f"{PLAN} -- {targets}")) == made
    finally:
        (tmp_path / "gone").rename(finished / gone)
