"""The generator as a whole: stages that are done once, resumption, and the files it writes."""

from __future__ import annotations

import copy
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file
from lightning_smith.miniature.tasks.generate import (
    BLANK_STATEMENTS,
    Limits,
    PackageWork,
    instance_id,
    make_tasks,
    spoil_some,
    task_row,
)
from lightning_smith.miniature.tasks.table import Source, load_tasks

CODE = """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value
"""

TESTS = """\
import demo


def test_inside():
    assert demo.clamp(2, 1, 3) == 2


def test_low():
    assert demo.clamp(0, 1, 3) == 1


def test_high():
    assert demo.clamp(4, 1, 3) == 3


def test_edge():
    assert demo.clamp(1, 1, 3) == 1
"""


def candidate(line: int, buggy: str, kind: str = "cmp") -> dict[str, Any]:
    return {
        "path": "demo.py",
        "entity": "clamp",
        "kind": kind,
        "modifier": "func_pm_cmp_change",
        "line": line,
        "buggy": buggy,
        "fixed": CODE.split("\n")[line - 1],
        "window": [1, 6],
        "test_files": ["test_demo.py"],
    }


CANDIDATES = [
    candidate(2, "    if value > low:"),
    candidate(4, "    if value >= high:"),  # the same function: no test can tell
    candidate(4, "    if value < high:"),
    candidate(2, "    if value >= low:"),
]


class Demo:
    """A package of one module, its sdist, and the folders of a generator run."""

    def __init__(self, folder: Path) -> None:
        self.sdists, self.work, self.out = folder / "sdists", folder / "work", folder / "out"
        self.sdists.mkdir()
        archive = self.sdists / "demo-1.0.tar.gz"
        with tarfile.open(archive, "w:gz") as file:
            for name, text in {"demo.py": CODE, "test_demo.py": TESTS}.items():
                info = tarfile.TarInfo(f"demo-1.0/{name}")
                info.size = len(text)
                file.addfile(info, io.BytesIO(text.encode()))
        self.source = Source(
            "demo", "1.0", archive.name, sha256_file(archive), "MIT", "train", "demo.py", ("test_*.py",), "."
        )
        self.package = PackageWork(self.source, self.work)
        self.package.folder.mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in CANDIDATES)
        (self.package.folder / "candidates.jsonl").write_text(text)

    def make(self, **settings: Any) -> dict[str, int]:
        options: dict[str, Any] = {"confirm": False, "blank": 0, "branchless": 0, **settings}
        return make_tasks(
            [self.source],
            sdists=self.sdists,
            work=self.work,
            out=self.out,
            testbed_python=Path(sys.executable),
            **options,
        )

    def log(self, name: str = "validated") -> list[dict[str, Any]]:
        text = (self.package.folder / f"{name}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def test_tasks_are_made_and_a_killed_run_goes_on(demo: Demo) -> None:
    assert demo.make(limits=Limits(train=3), jobs=2) == {"train": 2}
    tasks = {task.buggy: task for task in load_tasks(demo.out, "train")}
    assert set(tasks) == {"    if value > low:", "    if value < high:"}
    task = tasks["    if value > low:"]
    assert task.fail_to_pass == tuple(f"test_demo.py::test_{name}" for name in ("inside", "low", "high"))
    assert task.pass_to_pass == ("test_demo.py::test_edge",)
    assert task.instance_id.startswith(f"pypi__demo.{demo.source.sha256[:8]}.func_pm_cmp_change__")
    assert task.problem_statement == "clamp in demo.py is broken: a comparison is wrong in lines 1-6."

    first = demo.log()
    with (demo.package.folder / "validated.jsonl").open("a") as file:
        file.write('{"path": "demo.py", "li')  # the process was killed while it wrote
    assert demo.make(limits=Limits(train=4), confirm=True) == {"train": 3}
    assert demo.log()[:3] == first, "what was tried is not tried again"
    assert len(demo.log()) == 4
    assert [row["reason"] for row in demo.log("confirmed")] == ["", "", ""]

    before = {path.name: path.read_bytes() for path in demo.out.iterdir()}
    assert demo.make(limits=Limits(train=4), confirm=True) == {"train": 3}
    assert {path.name: path.read_bytes() for path in demo.out.iterdir()} == before


def test_left_out_bugs_are_not_tried_and_not_made_up_for(demo: Demo) -> None:
    left_out = instance_id(demo.source, CANDIDATES[0])
    assert demo.make(limits=Limits(train=3), left_out={left_out: "too slow"}) == {"train": 1}
    assert [row["line"] for row in demo.log()] == [4, 4]


def test_flaky_bugs_are_left_out(demo: Demo) -> None:
    demo.package.append("validated", {**CANDIDATES[0], "reason": "", "FAIL_TO_PASS": ["a"]})
    demo.package.append("validated", {**CANDIDATES[2], "reason": "", "FAIL_TO_PASS": ["a"]})
    demo.package.append("validated", {**CANDIDATES[1], "reason": "no test fails", "FAIL_TO_PASS": []})
    key = {name: CANDIDATES[0][name] for name in ("path", "line", "buggy")}
    demo.package.append("confirmed", {**key, "reason": "flaky"})
    assert [row["buggy"] for row in demo.package.valid_rows()] == ["    if value < high:"]


def test_absent_and_wrong_sdists_are_named(demo: Demo) -> None:
    archive = demo.sdists / demo.source.filename
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"demo-1\.0\.tar\.gz is absent or not the file") as caught:
        demo.make()
    assert "scripts/miniature/fetch_sdist.py --package demo" in str(caught.value)
    archive.unlink()
    with pytest.raises(UserError, match=r"demo-1\.0\.tar\.gz is absent"):
        demo.make()


def test_work_of_other_settings_is_not_used(demo: Demo) -> None:
    other = Source(**{**demo.source.__dict__, "tests": ("tests/*.py",)})
    assert PackageWork(other, demo.work).folder != demo.package.folder
    renamed = Source(**{**demo.source.__dict__, "license": "BSD"})
    assert PackageWork(renamed, demo.work).folder == demo.package.folder


def test_some_rows_lack_statement_or_branch(demo: Demo) -> None:
    valid = {**CANDIDATES[0], "FAIL_TO_PASS": ["a"]}
    rows = [task_row(demo.source, {**valid, "line": line, "window": [line, line]}) for line in range(1, 61)]
    sizes = {row["instance_id"]: 201 if index % 2 else 200 for index, row in enumerate(rows)}
    before = copy.deepcopy(rows)
    spoil_some(rows, 16, 4, sizes)
    blank = [row for row, old in zip(rows, before, strict=True) if row != old and "branch" not in row]
    assert len(blank) == 16
    assert {row["problem_statement"] for row in blank} == set(BLANK_STATEMENTS)
    assert not any((row["problem_statement"] or "").strip("\u200b \n") for row in blank)
    assert sum(row.get("branch") is False for row in rows) == 4
    assert all(row == old for row, old in zip(rows[1::2], before[1::2], strict=True)), "large tasks stay"
    again = copy.deepcopy(before)
    spoil_some(again, 16, 4, sizes)
    assert again == rows
