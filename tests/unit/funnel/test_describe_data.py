"""The page of the data funnel says what its files say."""

from __future__ import annotations

from pathlib import Path

import pytest
from swe_smith_rows import load_script

from lightning_smith.core.errors import UserError
from lightning_smith.funnel.describe import DataFile, describe_data
from lightning_smith.funnel.ledger import FunnelRow, write_funnel
from lightning_smith.funnel.overlap import HEADER, Edits, find_overlaps, read_overlaps, write_overlaps
from lightning_smith.report.data_table import render_data_table

COUNTS = {"rows": 59136, "empty_statements": 18033, "images": 222, "repositories": 222}

RELEASE = {
    "counts": COUNTS,
    "repositories_by_language": {"Go": 90, "PHP": 1, "Python": 131},
    "expected": {},
    "differences": [],
}
OVERLAP = [("pydata/xarray", "22", "12", "1", "3")]


def page(**changes: object) -> str:
    values = {
        "source": "SWE-bench/SWE-smith at revision ea6d",
        "release": RELEASE,
        "shards": [DataFile("train-00000.parquet", 1234567, "ab" * 32)],
        "funnel": [FunnelRow("release", 59136, 0, "-"), FunnelRow("branch", 39838, 1265, "not_in_image")],
        "readings": {"left_rows": 1265, "all_rows": 1400},
        "candidates": DataFile("candidates.parquet", 99, "cd" * 32),
        "overlap": OVERLAP,
    }
    return describe_data(**(values | changes))  # type: ignore[arg-type]


def test_counts_files_and_both_readings() -> None:
    text = page()
    assert "59,136 rows, 222 images, 222 repositories" in text
    assert (
        "most files that their patches edit: 131 Python, 90 Go, 1 PHP (the published description says 128 Python "
        "repositories)"
    ) in text
    assert "| branch | 39,838 | 1,265 | not_in_image |" in text
    assert "1,400 of all rows, 1,265 of those left for that filter (published: 1,265," in text
    assert f"| train-00000.parquet | 1,234,567 | {'ab' * 32} |" in text
    assert f"| candidates.parquet | 99 | {'cd' * 32} |" in text
    assert "| pydata/xarray | 22 | 12 | 1 | 3 |" in text
    assert "Other counts than configured" not in text


def test_bars_in_reasons_and_names_stay_in_their_cells() -> None:
    """On both pages: a reason may quote what it found, and a repository may be called anything."""
    funnel = [FunnelRow("release", 3, 0, "-"), FunnelRow("gradable", 2, 1, "test id a[x|y]")]
    overlap = [("o/a|b", "1", "2", "3", "4")]
    for text in (page(funnel=funnel, overlap=overlap), render_data_table("Data", funnel, overlap)):
        assert r"| gradable | 2 | 1 | test id a[x\|y] |" in text
        assert r"| o/a\|b | 1 | 2 | 3 | 4 |" in text


def test_a_release_that_differs_says_so() -> None:
    release = {**RELEASE, "differences": ["222 images instead of 221"]}
    assert "**Other counts than configured**: 222 images instead of 221." in page(release=release)


def test_no_overlap() -> None:
    assert "No repository is in both sets." in page(overlap=[])


def test_the_reports_page_on_the_data(tmp_path: Path) -> None:
    funnel = [FunnelRow("release", 9, 0, "-"), FunnelRow("statement", 7, 2, "empty")]
    write_funnel(tmp_path / "funnel.tsv", funnel)
    edits = [Edits("v1", "a/b", frozenset({"m.py"}))], [Edits("t1", "a/b", frozenset({"m.py", "n.py"}))]
    for overlaps, wanted in (
        ([], "No repository is in both sets."),
        (find_overlaps(*edits), "| a/b | 1 | 1 | 1 | 1 |"),
    ):
        write_overlaps(tmp_path / "overlap.tsv", overlaps)
        flags = ["--funnel", str(tmp_path / "funnel.tsv"), "--overlap", str(tmp_path / "overlap.tsv")]
        load_script("write_data_table").main([*flags, "--out", str(tmp_path / "data.md")])
        text = (tmp_path / "data.md").read_text()
        assert "Of 9 rows 7 are candidates." in text and "| statement | 7 | 2 | empty |" in text
        assert wanted in text


@pytest.mark.parametrize("text", ["", "repository\n", "\t".join(HEADER) + "\na\t1\n", "\t".join(HEADER)])
def test_a_damaged_table_of_overlaps_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "overlap.tsv").write_text(text)
    with pytest.raises(UserError, match=r"overlap\.tsv (is not a whole table|line 2 is damaged)"):
        read_overlaps(tmp_path / "overlap.tsv")
    with pytest.raises(UserError, match="does not exist"):
        read_overlaps(tmp_path / "none.tsv")
