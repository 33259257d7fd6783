"""The committed tables of the miniature: loading, patches, and what a bad row says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.tasks.table import (
    SOURCE_COLUMNS,
    MiniTask,
    load_left_out,
    load_sources,
    load_tasks,
    one_line_patch,
)

ROOT = Path(__file__).resolve().parents[3]
ASSETS = ROOT / "assets" / "miniature"

SOURCE = {
    "package": "Demo_pkg",
    "version": "1.0",
    "filename": "demo_pkg-1.0.tar.gz",
    "sha256": "ab" * 32,
    "license": "MIT",
    "role": "train",
    "source": "src/demo",
    "tests": "tests/test_*.py;tests/more/*.py",
    "pythonpath": "src",
}

TESTS = {
    "demo": {"tests/test_a.py": ["tests/test_a.py::one", "tests/test_a.py::two[é]", "tests/test_a.py::three"]}
}

ROW: dict[str, Any] = {
    "instance_id": "pypi__demo.abababab.func_pm_cmp_change__0123abcd",
    "package": "demo",
    "path": "src/demo/core.py",
    "entity": "clamp",
    "kind": "cmp",
    "modifier": "func_pm_cmp_change",
    "line": 4,
    "buggy": "    if a != b:",
    "fixed": "    if a == b:",
    "window": [2, 8],
    "problem_statement": "clamp in src/demo/core.py is broken: a comparison is wrong in lines 2-8.",
    "test_files": ["tests/test_a.py"],
    "FAIL_TO_PASS": ["tests/test_a.py::two[é]"],
}


def write_sources(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "sources.tsv"
    lines = ["\t".join(SOURCE_COLUMNS), *("\t".join(row[name] for name in SOURCE_COLUMNS) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_tasks(folder: Path, *rows: dict[str, Any]) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    (folder / "tests.json").write_text(json.dumps(TESTS), encoding="utf-8")
    return folder


def test_sources_have_typed_fields_and_names(tmp_path: Path) -> None:
    (source,) = load_sources(write_sources(tmp_path, SOURCE))
    assert source.tests == ("tests/test_*.py", "tests/more/*.py")
    assert source.key == "pypi__Demo_pkg.abababab"
    assert source.repo == "swesmith/pypi__Demo_pkg.abababab"
    assert source.image_name == "swesmith/swesmith.x86_64.pypi_1776_demo_pkg.abababab"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"role": "test"}, "role 'test'"),
        ({"sha256": "AB" * 32}, "64 lower-case hexadecimal digits"),
        ({"sha256": "ab" * 20}, "64 lower-case hexadecimal digits"),
        ({"tests": ""}, "has no tests"),
        ({"tests": "!tests/test_a.py"}, "has no tests"),
        ({"source": ""}, "empty column source"),
        ({"source": "../x"}, "leaves the package"),
        ({"tests": "/etc/*.py"}, "leaves the package"),
        ({"tests": "tests/*.py;!../x.py"}, "leaves the package"),
        ({"pythonpath": ".:../other"}, "leaves the package"),
        ({"license": "MIT\tBSD"}, "has 10 columns instead of 9"),
        ({}, "repeats demo_pkg-1.0.tar.gz"),
    ],
)
def test_bad_source_row_names_file_and_line(tmp_path: Path, change: dict[str, str], said: str) -> None:
    path = write_sources(tmp_path, SOURCE, {**SOURCE, **change})
    with pytest.raises(UserError) as caught:
        load_sources(path)
    assert f"{path} line 3" in str(caught.value)
    assert said in str(caught.value)


def test_source_without_tests_is_fine_for_demonstrations(tmp_path: Path) -> None:
    (source,) = load_sources(
        write_sources(tmp_path, {**SOURCE, "role": "demo", "tests": "", "pythonpath": ""})
    )
    assert source.tests == ()


def test_source_header_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "sources.tsv"
    path.write_text("package\tversion\n")
    with pytest.raises(UserError, match="line 1 must name the columns"):
        load_sources(path)


def test_left_out_bugs_have_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "left_out.tsv"
    path.write_text("instance_id\treason\na__1\ttoo slow\nb__2\tthe same, in another run\n")
    assert load_left_out(path) == {"a__1": "too slow", "b__2": "the same, in another run"}
    for torn in ("a__1\n", "\tno name\n", "a__1\ttoo slow\na__1\tagain\n"):
        path.write_text("instance_id\treason\n" + torn)
        with pytest.raises(UserError, match=r"left_out\.tsv line [23] must hold an instance id"):
            load_left_out(path)
    path.write_text("a__1\ttoo slow\n")
    with pytest.raises(UserError, match="line 1 must name the columns"):
        load_left_out(path)
    path.unlink()
    with pytest.raises(UserError, match="restore it with git checkout"):
        load_left_out(path)


def test_task_has_its_pass_to_pass(tmp_path: Path) -> None:
    (task,) = load_tasks(write_tasks(tmp_path, ROW), "train")
    assert task.fail_to_pass == ("tests/test_a.py::two[é]",)
    assert task.pass_to_pass == ("tests/test_a.py::one", "tests/test_a.py::three")
    assert task.test_count == 3
    assert task.window == (2, 8)
    assert task.branch


@pytest.mark.parametrize("statement", [None, "", "  \n\t", "\u200b\ufeff"])
def test_statement_may_be_absent_or_blank(tmp_path: Path, statement: str | None) -> None:
    row = {**ROW, "problem_statement": statement, "branch": False}
    (task,) = load_tasks(write_tasks(tmp_path, row), "train")
    assert task.problem_statement == statement
    assert not task.branch


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "loop"}, "kind 'loop'"),
        ({"line": "4"}, "field line of the wrong type (str)"),
        ({"line": True}, "field line of the wrong type (bool)"),
        ({"window": [5, 9]}, "does not hold its line 4"),
        ({"window": [2]}, "does not hold its line 4"),
        ({"buggy": ROW["fixed"]}, "changes nothing"),
        ({"path": "../core.py"}, "leaves the package"),
        ({"test_files": ["tests/test_b.py"]}, "tests.json lacks"),
        ({"package": "other"}, "tests.json lacks"),
        ({"FAIL_TO_PASS": ["tests/test_a.py::four"]}, "tests/test_a.py::four"),
        ({"FAIL_TO_PASS": []}, "is empty"),
        ({"colour": 1}, "unknown field colour"),
        ({}, "repeats the instance id"),
    ],
)
def test_bad_task_row_names_file_and_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    folder = write_tasks(tmp_path, ROW, {**ROW, **change})
    with pytest.raises(UserError) as caught:
        load_tasks(folder, "train")
    assert f"{folder / 'train.jsonl'} line 2" in str(caught.value)
    assert said in str(caught.value)


def test_missing_field_and_torn_line_are_named(tmp_path: Path) -> None:
    write_tasks(tmp_path, {name: value for name, value in ROW.items() if name != "fixed"})
    with pytest.raises(UserError, match="line 1 lacks the field fixed"):
        load_tasks(tmp_path, "train")
    write_tasks(tmp_path, ROW)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"instance_id": "x')
    with pytest.raises(UserError, match="line 2 is not valid JSON"):
        load_tasks(tmp_path, "train")


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tests\.json does not exist"):
        load_tasks(tmp_path, "train")
    with pytest.raises(UserError, match=r"sources\.tsv does not exist"):
        load_sources(tmp_path / "sources.tsv")


TEXTS = {
    "middle": "".join(f"line {n}\n" for n in range(1, 20)),
    "no newline at the end": "\n".join(f"line {n}" for n in range(1, 9)),
    "separators inside a line": "a\x0cb\nc\u2028d\ne\x85f\nline 4\n\n\n\n",
    "one line": "line 1",
    "carriage returns": "line 1\r\nline 2\r\nline 3\r\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_patches_apply_and_reverse_with_git(tmp_path: Path, name: str) -> None:
    text = TEXTS[name]
    lines = text.split("\n")
    path = "pkg/code.py"
    (tmp_path / "pkg").mkdir()
    file = tmp_path / path

    def git_apply(patch: str, *flags: str) -> bytes:
        command = ["git", "apply", *flags, "-"]
        subprocess.run(command, input=patch.encode(), cwd=tmp_path, check=True, capture_output=True)
        return file.read_bytes()

    for number in range(1, len(lines) + (lines[-1] != "")):
        task = mini_task(path, number, fixed=lines[number - 1], buggy="# bügg")
        broken = "\n".join([*lines[: number - 1], "# bügg", *lines[number:]]).encode()
        file.write_bytes(text.encode())
        assert task.break_text(text).encode() == broken
        assert git_apply(task.bug_patch(text)) == broken
        assert git_apply(task.bug_patch(text), "--reverse") == text.encode()
        git_apply(task.bug_patch(text))
        assert git_apply(task.gold_patch(text)) == text.encode()


def mini_task(path: str, line: int, fixed: str, buggy: str) -> MiniTask:
    return MiniTask(
        "id", "demo", path, "f", "cmp", "m", line, buggy, fixed, (line, line), None, (), (), (), True
    )  # fmt: skip


def test_patch_of_another_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"core\.py line 2 does not read"):
        one_line_patch("core.py", "a\nb\n", 2, "c", "d")
    with pytest.raises(UserError, match="line 9 does not read"):
        one_line_patch("core.py", "a\nb\n", 9, "c", "d")


def test_committed_sources_load() -> None:
    sources = load_sources(ASSETS / "sources.tsv")
    roles = {source.package: source.role for source in sources}
    assert {"boltons", "isodate", "sqlparse"} <= {name for name, role in roles.items() if role == "train"}
    assert {"cachetools", "toolz", "tinydb"} <= {name for name, role in roles.items() if role == "heldout"}
