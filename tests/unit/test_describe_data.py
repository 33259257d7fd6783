"""The page of the data funnel says what its files say."""

from __future__ import annotations

from lightning_smith.tasks.describe import DataFile, describe_data
from lightning_smith.tasks.funnel import FunnelRow

COUNTS = {"rows": 59136, "empty_statements": 18033, "images": 222, "repositories": 222}


def page(**changes: object) -> str:
    values = {
        "source": "SWE-bench/SWE-smith at revision ea6d",
        "release": {"counts": COUNTS, "expected": {}, "differences": []},
        "shards": [DataFile("train-00000.parquet", 1234567, "ab" * 32)],
        "funnel": [FunnelRow("release", 59136, 0, "-"), FunnelRow("branch", 39838, 1265, "not_in_image")],
        "readings": {"left_rows": 1265, "all_rows": 1400},
        "candidates": DataFile("candidates.parquet", 99, "cd" * 32),
        "overlap": [["repository", "training_tasks"], ["pydata/xarray", "12"]],
    }
    return describe_data(**(values | changes))  # type: ignore[arg-type]


def test_counts_files_and_both_readings() -> None:
    text = page()
    assert "59,136 rows, 222 images, 222 repositories" in text and "128 Python repositories" in text
    assert "| branch | 39,838 | 1,265 | not_in_image |" in text
    assert "1,400 of all rows, 1,265 of those left for that filter (published: 1,265," in text
    assert f"| train-00000.parquet | 1,234,567 | {'ab' * 32} |" in text
    assert f"| candidates.parquet | 99 | {'cd' * 32} |" in text
    assert "| pydata/xarray | 12 |" in text
    assert "Not the configured release" not in text


def test_a_release_that_differs_says_so() -> None:
    release = {"counts": COUNTS, "expected": {}, "differences": ["222 images instead of 221"]}
    assert "**Not the configured release**: 222 images instead of 221." in page(release=release)


def test_no_overlap() -> None:
    assert "No repository is in both sets." in page(overlap=[["repository", "training_tasks"]])
