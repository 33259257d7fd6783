"""Files of patches, bugs in test files, and overlap with the evaluation set, on the real set as well."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.contracts.task import Grade
from lightning_smith.funnel.filters import bug_in_tests, overlap
from lightning_smith.funnel.overlap import edits, find_overlaps, overlapping_tasks, real_repository
from lightning_smith.probe.split import changes
from lightning_smith.release.patches import UnreadablePatchError, edited_files, split_diff
from lightning_smith.sandbox.diff import choose_parts


def patch(*paths: str, old: str | None = None) -> str:
    return "".join(
        f"diff --git a/{old or path} b/{path}\n--- a/{old or path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y\n"
        for path in paths
    )


def test_files_of_a_patch() -> None:
    assert edited_files(patch("src/a.py", "tests/b c.py")) == {"src/a.py", "tests/b c.py"}
    assert edited_files(patch("new.py", old="old.py")) == {"new.py", "old.py"}
    added = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+x\n"
    assert edited_files(added) == {"pkg/new.py"}
    assert edited_files(patch("a/b.py")) == {"a/b.py"}, "a folder named like the prefix stays"


QUOTED = '"{}/tests/Pr\\303\\274fung eins.py"'
"""How git prints `tests/Prüfung eins.py`."""


def quoted_patch(*lines: str) -> str:
    old, new = QUOTED.format("a"), QUOTED.format("b")
    return "\n".join([f"diff --git {old} {new}", *(line.format(old=old, new=new) for line in lines), ""])


@pytest.mark.parametrize(
    "lines",
    [
        ("--- {old}", "+++ {new}", "@@ -1 +1 @@", "-x = 1", "+x = 2"),
        ("old mode 100644", "new mode 100755"),
        ("index 1..2 100644", "GIT binary patch", "literal 1", "IcmZPo000311ONa4", ""),
        ("deleted file mode 100644", "--- {old}", "+++ /dev/null", "@@ -1 +0,0 @@", "-x = 1"),
    ],
    ids=["text", "mode", "binary", "deleted"],
)
def test_a_name_that_git_quotes_is_the_same_for_every_reader(lines: tuple[str, ...]) -> None:
    text, name = quoted_patch(*lines), "tests/Prüfung eins.py"
    assert edited_files(text) == {name}
    assert bug_in_tests.why_dropped(text, [f"{name}::test_x"]) == "bug_in_test_file"
    evaluation = edits("b", "acme/widget", patch(name))
    (found,) = find_overlaps([edits("a", "swesmith/acme__widget.0badcafe", text)], [evaluation])
    assert (found.shared_files, found.on_shared_files) == ((name,), ("a",))
    assert choose_parts(text.encode(), lambda path: path == name) == (b"", [name])
    if lines[0].startswith("---"):
        assert changes(text) == changes(
            patch(name).replace("@@ -1,2 +1,2 @@", "@@ -1 +1 @@").replace(" y\n", "")
        )


def test_files_of_a_patch_that_is_not_gits() -> None:
    """Names end at a tab; a removed line `-- a` reads like a header and is none."""
    text = (
        "Index: one.py\n--- a/one.py\t2026-01-01 00:00:00\n+++ b/one.py\t2026-01-02 00:00:00\n@@ -1,2 +1,2 @@\n"
        "--- a/no.py\n+++ b/no.py\n x\n--- a/tests/two.py\n+++ b/tests/two.py\n@@ -1 +1 @@\n-x\n+y\n"
    )
    assert [part.names for part in split_diff(text.encode())] == [("one.py",), ("tests/two.py",)]
    assert edited_files(text) == {"one.py", "tests/two.py"}


def test_a_line_that_only_unicode_ends_does_not_end_a_hunk() -> None:
    text = "--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n-s = 'x\u2028y\x0c'\n+s = 'x\u2028z\x0c'\n t\n"
    assert edited_files(text) == {"m.py"}


def test_an_escape_that_git_does_not_write_stands_for_itself() -> None:
    text = patch("x.py").replace("a/x.py", '"a/\\9x.py"').replace("b/x.py", '"b/\\9x.py"')
    assert edited_files(text) == {"9x.py"}


@pytest.mark.parametrize("text", ["", "nothing", "@@ -1 +1 @@\n-a\n+b\n", patch("a.py")[:-12]])
def test_what_is_no_patch_is_refused(text: str) -> None:
    with pytest.raises(UnreadablePatchError):
        edited_files(text)


@given(st.text(max_size=300))
def test_any_text_gives_files_or_is_refused(text: str) -> None:
    with contextlib.suppress(UnreadablePatchError):
        assert edited_files(text)


@pytest.mark.parametrize(
    ("edited", "fails", "passes", "narrow", "all_tests"),
    [
        (["pkg/a.py"], ["tests/test_a.py::test_x"], ["tests/test_b.py::test_y"], None, None),
        (["pkg/a.py", "test_a.py"], ["test_a.py::test_x[a::b]"], [], "bug_in_test_file", "bug_in_test_file"),
        (["pkg/a.py"], ["pkg/a.py::pkg.a.f"], [], "bug_in_test_file", "bug_in_test_file"),
        (["pkg/a.py"], ["tests/test_a.py::test_x"], ["pkg/a.py::pkg.a.f"], None, "bug_in_test_file"),
        (["pkg/a.py"], ["tests/test_a.py::test_x"], ["pkg/b.py::pkg.b.f"], None, None),
        (["tests/helper.py"], ["tests/a/test_a.py::test_x"], [], "bug_in_test_file", "bug_in_test_file"),
        (["checks/helper.py"], ["checks/test_a.py::test_x"], [], None, None),
        (["a_test.go"], ["TestX/y"], ["TestX/z"], None, None),
        (["conftest.py"], ["tests/test_a.py::test_x"], [], "bug_in_test_file", "bug_in_test_file"),
        (["pkg/a.py", "setup.cfg"], ["tests/test_a.py::test_x"], [], None, None),
        ([], ["tests/test_a.py::test_x"], [], "unreadable_patch", "unreadable_patch"),
    ],
)
def test_a_bug_in_a_file_that_grades_it_is_dropped(
    edited: list[str], fails: list[str], passes: list[str], narrow: str | None, all_tests: str | None
) -> None:
    row = {"patch": patch(*edited) or "no patch", "FAIL_TO_PASS": fails, "PASS_TO_PASS": passes}
    batch = pa.RecordBatch.from_pylist([row])
    found = [bug_in_tests.reasons(batch, grade) for grade in (Grade.FAIL_TO_PASS, Grade.ALL)]
    assert found == [[narrow], [all_tests]]


@pytest.mark.parametrize(
    ("repo", "real"),
    [
        ("swesmith/pydata__xarray.7c4e2ac8", "pydata/xarray"),
        ("swesmith/Project-MONAI__MONAI.a09c1f08", "project-monai/monai"),
        ("swesmith/a__b__c.12345678", "a/b__c"),
        ("django/django", "django/django"),
        ("astropy/Astropy", "astropy/astropy"),
    ],
)
def test_snapshots_are_named_by_their_repository(repo: str, real: str) -> None:
    assert real_repository(repo) == real


def test_overlap_by_repository_and_by_file() -> None:
    training = [
        edits("t1", "swesmith/pydata__xarray.7c4e2ac8", patch("xarray/core/a.py")),
        edits("t2", "swesmith/pydata__xarray.7c4e2ac8", patch("xarray/core/b.py")),
        edits("t3", "swesmith/other__one.12345678", patch("xarray/core/a.py")),
        edits("t4", "swesmith/pydata__xarray.7c4e2ac8", "unreadable"),
    ]
    evaluation = [
        edits("v1", "pydata/xarray", patch("xarray/core/a.py", "doc.rst")),
        edits("v2", "pydata/xarray", patch("xarray/core/a.py")),
        edits("v3", "django/django", patch("django/db.py")),
    ]
    overlaps = find_overlaps(training, evaluation)
    assert [item.row() for item in overlaps] == [("pydata/xarray", "2", "3", "1", "1")]
    assert overlaps[0].shared_files == ("xarray/core/a.py",)
    found = overlapping_tasks(overlaps)
    assert found == {"t1": "file", "t2": "repository", "t4": "repository"}
    rows = pa.RecordBatch.from_pylist([{"instance_id": name} for name in ("t1", "t2", "t3", "t4")])
    assert overlap.reasons(rows, found, "file") == ["same_file", None, None, None]
    assert overlap.reasons(rows, found, "repository") == [
        "same_file",
        "same_repository",
        None,
        "same_repository",
    ]


def test_every_patch_of_the_real_evaluation_set_can_be_read() -> None:
    path = Path(__file__).parents[2] / "data" / "verified_patches.json"
    rows = json.loads(path.read_text())
    assert len(rows) == 40
    for row in rows:
        assert edited_files(row["patch"]), row["instance_id"]
