"""Validation of tasks in real sandboxes: right ones, and every kind of wrong one."""

from __future__ import annotations

import difflib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_image
from outer_repository import InRepository
from tiny_image import REPOSITORY, TESTBED_PYTHON

from lightning_smith.config.models import Validation
from lightning_smith.config.settings_file import write_settings
from lightning_smith.config.stages import ValidateStage
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.contracts.validation import Patch, ValidationLog, ValidationRecord, verdict, verdicts
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl, sha256_file
from lightning_smith.funnel.filters import bug_in_tests
from lightning_smith.funnel.filters.decisions import Decisions, read_decisions, write_decisions
from lightning_smith.grading.plan import ImageTests, TestPlan
from lightning_smith.grading.tester import GraderError
from lightning_smith.grading.validate import (
    BuggyTask,
    TaskRooms,
    buggy_tasks,
    reverse_command,
    validate,
    validate_once,
)
from lightning_smith.grading.verdict import decide
from lightning_smith.miniature.repositories import ImageRecipe, TaskBranch, build_image
from lightning_smith.release.columns import SCHEMA
from lightning_smith.repositories.names import image_key
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.sandbox.rooms import BwrapRoom

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

IMAGE_NAME = "swesmith/swesmith.x86_64.pypi_1776_gauge.0badcafe"
PREFIX = "pypi__gauge.0badcafe.func_pm_op_change__"
CORE_PATH = "gauge/core.py"
CORE = tiny_image.CORE.replace(
    "def span(low, high):\n", 'def span(low, high):\n    """\n    >>> span(0, 3)\n    3\n    """\n'
)
"""Holds a doctest."""
BUGGY = CORE.replace("    if value < low:", "    if value >= low:")

FILES = {
    "gauge/__init__.py": "from gauge.core import clamp, span\n",
    CORE_PATH: CORE,
    "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
    "tests/test_low.py": "from gauge import clamp\n\n\ndef test_low():\n    assert clamp(-1, 0, 3) == 0\n",
    "tests/test_span.py": "from gauge import span\n\n\ndef test_span():\n    assert span(0, 3) == 3\n",
    "tests/test_wrong.py": "from gauge import span\n\n\ndef test_wrong():\n    assert span(0, 3) == 4\n",
    # Really flaky: each run throws a coin.
    "tests/test_coin.py": "import os\n\n\ndef test_coin():\n    assert os.urandom(1)[0] % 2\n",
    "tests/test_slow.py": "def test_slow():\n    while True:\n        pass\n",
}
LOW, SPAN = "tests/test_low.py::test_low", "tests/test_span.py::test_span"
DOCTEST = f"{CORE_PATH}::gauge.core.span"


def bug(before: str, after: str, path: str = CORE_PATH) -> str:
    """A patch in git's format, as SWE-smith's generators write it."""
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)


TASKS: dict[str, dict[str, Any]] = {
    "right": {},
    "gold_does_not_apply": {"patch": bug(CORE.replace("value", "number"), BUGGY.replace("value", "number"))},
    "gold_is_garbage": {"patch": "a fix, surely"},
    "gold_fails": {"FAIL_TO_PASS": [LOW, "tests/test_wrong.py::test_wrong"]},
    "gold_fails_elsewhere": {"PASS_TO_PASS": ["tests/test_wrong.py::test_wrong"]},
    "empty_passes": {"FAIL_TO_PASS": [SPAN], "PASS_TO_PASS": []},
    "both_wrong": {"FAIL_TO_PASS": [SPAN], "PASS_TO_PASS": [], "patch": "a fix, surely"},
    "bug_is_elsewhere": {"PASS_TO_PASS": []},
    "flaky": {"PASS_TO_PASS": [SPAN, "tests/test_coin.py::test_coin"]},
    "no_such_file": {"PASS_TO_PASS": ["tests/test_absent.py::test_absent"]},
    "doctest_passes": {"PASS_TO_PASS": [SPAN, DOCTEST]},
    "doctest_fails": {"FAIL_TO_PASS": [LOW, DOCTEST]},
    "no_fail_to_pass": {"FAIL_TO_PASS": []},
    "slow": {"PASS_TO_PASS": ["tests/test_slow.py::test_slow"]},
}
EXPECTED = {
    "right": None,
    "gold_does_not_apply": "gold_fails",
    "gold_is_garbage": "gold_fails",
    "gold_fails": "gold_fails",
    "empty_passes": "empty_passes",
    "both_wrong": "gold_fails_empty_passes",
    "bug_is_elsewhere": "gold_fails_empty_passes",
    "no_such_file": "grader_error",
    "doctest_passes": "grader_error",
    "doctest_fails": "grader_error",
    "no_fail_to_pass": "grader_error",
}
"""Of those whose verdict does not depend on chance or on a time limit."""


def row(name: str) -> dict[str, Any]:
    return {
        "instance_id": PREFIX + name,
        "patch": bug(CORE, BUGGY),
        "FAIL_TO_PASS": [LOW],
        "PASS_TO_PASS": [SPAN],
        "image_name": IMAGE_NAME,
        "repo": "swesmith/pypi__gauge.0badcafe",
        "problem_statement": "clamp is broken",
        **TASKS[name],
    }


def write_release(path: Path, *names: str) -> Path:
    pq.write_table(pa.Table.from_pylist([row(name) for name in names], schema=SCHEMA), path)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image with a branch for each task."""
    images = tmp_path_factory.mktemp("images")
    branches = []
    for name in TASKS:
        removed = {test.partition("::")[0] for test in row(name)["FAIL_TO_PASS"]} - {CORE_PATH}
        code = CORE.replace("high - low", "high + low") if name == "bug_is_elsewhere" else BUGGY
        branches.append(TaskBranch(PREFIX + name, {CORE_PATH: code.encode()}, tuple(sorted(removed))))
    build(images, IMAGE_NAME, FILES, *branches)
    return images


def build(images: Path, image_name: str, files: Mapping[str, str], *branches: TaskBranch) -> None:
    """An image of a package of these files."""
    sdist = images / "gauge-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"gauge-1.0/{name}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    recipe = ImageRecipe(image_name, "gauge", "1.0", sdist, sha256_file(sdist), ".", branches)
    build_image(images / image_key(image_name), recipe, TESTBED_PYTHON)


def local_rooms(images: Path, *, timeout_s: float, scratch: Path, grade: Grade = Grade.ALL) -> TaskRooms:
    room = BwrapRoom(images, TESTBED_PYTHON)
    return TaskRooms(room, ImageTests(), timeout_s=timeout_s, scratch=scratch, grade=grade)


@pytest.fixture(scope="module")
def rooms(images: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskRooms:
    return local_rooms(images, timeout_s=30, scratch=tmp_path_factory.mktemp("scratch"))


def run(
    shard: Path,
    rooms: TaskRooms,
    log: Path,
    names: list[str],
    *,
    runs: int,
    max_invalid_fraction: float = 1.0,
) -> list[ValidationRecord]:
    tasks = partial(buggy_tasks, [shard], {PREFIX + name for name in names})
    return validate(
        tasks,
        rooms,
        ValidationLog(log),
        runs=runs,
        workers=2,
        total=len(names),
        retries=0,
        max_invalid_fraction=max_invalid_fraction,
    )


def test_each_kind_of_wrong_task_has_its_own_reason(tmp_path: Path, rooms: TaskRooms) -> None:
    shard = write_release(tmp_path / "a.parquet", *TASKS)
    records = run(shard, rooms, tmp_path / "log.jsonl", list(EXPECTED), runs=2)
    assert len(records) == 2 * 2 * len(EXPECTED)
    found = verdicts(records, 2)
    assert {name: found[PREFIX + name] for name in EXPECTED} == EXPECTED
    by_key = {(each.instance_id.removeprefix(PREFIX), each.patch, each.run): each for each in records}
    assert by_key["right", Patch.GOLD, 0].outcome is Outcome.SOLVED
    assert by_key["right", Patch.EMPTY, 1].failed_tests == (LOW,)
    assert by_key["gold_fails", Patch.GOLD, 0].failed_tests == ("tests/test_wrong.py::test_wrong",)
    for name in ("gold_does_not_apply", "gold_is_garbage", "bug_is_elsewhere"):
        assert "the bug's patch cannot be reversed" in (by_key[name, Patch.GOLD, 0].error or "")
        assert by_key[name, Patch.GOLD, 0].failed is None, "no test ran"
    assert "lacks tests/test_absent.py" in (by_key["no_such_file", Patch.EMPTY, 0].error or "")
    for name in ("doctest_passes", "doctest_fails"):
        assert f"its bug is in {CORE_PATH}, which grades it as well" in (
            by_key[name, Patch.GOLD, 0].error or ""
        )
    assert "has no FAIL_TO_PASS test" in (by_key["no_fail_to_pass", Patch.GOLD, 1].error or "")


class EveryFile(ImageTests):
    """Plans with all files of a task's tests, whichever decide, as SWE-smith's harness puts them all back."""

    def plan(self, task: RolloutTask, image: Revisions, grade: Grade) -> TestPlan:
        return replace(super().plan(task, image, grade), paths=task.test_files, test_files=task.test_files)


@pytest.mark.parametrize("plans", [ImageTests(), EveryFile()], ids=["image", "every file"])
def test_a_doctest_that_does_not_decide_does_not_keep_its_file_from_repair(
    tmp_path: Path, images: Path, plans: ImageTests
) -> None:
    """Where the doctest decides, its file is what a patch may not change, and the task is refused."""
    narrow = TaskRooms(
        BwrapRoom(images, TESTBED_PYTHON), plans, timeout_s=30, scratch=tmp_path, grade=Grade.FAIL_TO_PASS
    )
    buggy = _task("doctest_passes")
    shard = write_release(tmp_path / "a.parquet", *TASKS)
    records = run(shard, narrow, tmp_path / "log.jsonl", ["doctest_passes", "doctest_fails"], runs=1)
    assert verdicts(records, 1) == {PREFIX + "doctest_passes": None, PREFIX + "doctest_fails": "grader_error"}
    with narrow.workspace(buggy.task) as workspace:
        edit = f"sed -i 's/>>> span(0, 3)/>>> 3/; s/high - low/3/' {CORE_PATH} && echo x > tests/test_span.py"
        assert workspace.execute(edit, 60).returncode == 0
        assert decide(buggy.task, narrow.test(buggy.task, workspace.diff())) is Outcome.UNSOLVED
    with pytest.raises(GraderError, match="which grades it as well"):
        local_rooms(images, timeout_s=30, scratch=tmp_path).test(buggy.task, b"")


SLUGS = '''"""Names for addresses."""


def slug(text):
    """Lower-case words with one dash between them."""
    return "-".join(text.lower().split())


def width(text):
    """Characters of a slug.

    >>> width("ab")
    2
    """
    return len(slug(text))
'''
SLUGS_BUGGY = SLUGS.replace(".split()", '.split(" ")')
SLUGS_TESTS = """from slugs import slug, width


def test_blanks():
    assert slug("a  b") == "a-b"


def test_width():
    assert width("ab") == 2
"""


@pytest.mark.parametrize("plans", [ImageTests(), EveryFile()], ids=["image", "every file"])
def test_a_task_whose_repaired_file_holds_a_test_that_passes(tmp_path: Path, plans: ImageTests) -> None:
    """Case 43: kept and gold solved where the doctest does not decide, dropped and refused where it does."""
    name = "swesmith/swesmith.x86_64.acme_1776_slugs.1a2b3c4d"
    row = {
        "instance_id": "acme__slugs.1a2b3c4d.func_pm_x__0a1b2c3d",
        "repo": "swesmith/acme__slugs.1a2b3c4d",
        "image_name": name,
        "FAIL_TO_PASS": ["tests/test_slugs.py::test_blanks"],
        "PASS_TO_PASS": ["tests/test_slugs.py::test_width", "slugs.py::slugs.width"],
        "problem_statement": "slug() keeps empty words when two blanks follow each other.",
        "patch": bug(SLUGS, SLUGS_BUGGY, "slugs.py"),
    }
    files = {
        "slugs.py": SLUGS,
        "tests/test_slugs.py": SLUGS_TESTS,
        "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        # What git makes of it is the checkout's alone: the bug is taken back byte for byte.
        ".gitattributes": "*.py eol=crlf\n",
    }
    build(
        tmp_path,
        name,
        files,
        TaskBranch(row["instance_id"], {"slugs.py": SLUGS_BUGGY.encode()}, ("tests/test_slugs.py",)),
    )
    batch = pa.RecordBatch.from_pylist([row])
    task = BuggyTask.from_row(row, "a row")
    found = {}
    for grade in Grade:
        room = BwrapRoom(tmp_path, TESTBED_PYTHON)
        rooms = TaskRooms(room, plans, timeout_s=30, scratch=tmp_path / "scratch", grade=grade)
        outcomes = [validate_once(task, patch, 0, rooms).outcome for patch in (Patch.GOLD, Patch.EMPTY)]
        found[grade] = (bug_in_tests.reasons(batch, grade), outcomes)
    refused = [Outcome.GRADER_ERROR, Outcome.GRADER_ERROR]
    assert found == {
        Grade.FAIL_TO_PASS: ([None], [Outcome.SOLVED, Outcome.UNSOLVED]),
        Grade.ALL: (["bug_in_test_file"], refused),
    }
    with rooms.workspace(task.task) as workspace:
        assert workspace.execute(reverse_command(task.bug), 60).returncode == 0
        assert workspace.execute("cat slugs.py", 60).output == SLUGS.encode()


def test_only_the_tests_that_decide_have_to_pass(tmp_path: Path, rooms: TaskRooms, images: Path) -> None:
    shard = write_release(tmp_path / "a.parquet", *TASKS)
    log = tmp_path / "log.jsonl"
    name = "gold_fails_elsewhere"
    _, gold = sorted(run(shard, rooms, log, [name], runs=1), key=lambda each: each.patch)
    assert (gold.patch, gold.outcome) == (Patch.GOLD, Outcome.UNSOLVED)
    narrow = local_rooms(images, timeout_s=30, scratch=tmp_path / "scratch", grade=Grade.FAIL_TO_PASS)
    empty, gold = sorted(run(shard, narrow, log, [name], runs=1), key=lambda each: each.patch)
    assert (gold.outcome, gold.failed, gold.failed_tests) == (Outcome.SOLVED, 0, ())
    assert (empty.outcome, empty.failed_tests) == (Outcome.UNSOLVED, (LOW,))


def test_a_repository_above_the_tree_has_no_say(tmp_path: Path, images: Path) -> None:
    """Git would skip every file of a patch there, with exit status 0: the gold patch would change nothing."""
    room = BwrapRoom(images, TESTBED_PYTHON)
    room.sandbox = InRepository.around(room.sandbox, tmp_path / "outer")
    rooms = TaskRooms(room, ImageTests(), timeout_s=30, scratch=tmp_path / "scratch")
    shard = write_release(tmp_path / "a.parquet", "right")
    assert verdicts(run(shard, rooms, tmp_path / "log.jsonl", ["right"], runs=1), 1) == {
        PREFIX + "right": None
    }


def test_a_gold_patch_that_changes_nothing_is_none(rooms: TaskRooms) -> None:
    buggy = _task("right")
    nothing = BuggyTask(buggy.task, buggy.bug.replace(b"value < low", b"value >= low"))
    record = validate_once(nothing, Patch.GOLD, 0, rooms)
    assert (record.outcome, record.failed) == (Outcome.UNSOLVED, None)
    assert record.error == "the bug's patch changes nothing when it is reversed"


def test_a_task_whose_tests_throw_coins_is_flaky(tmp_path: Path, rooms: TaskRooms) -> None:
    """All twenty runs agree once in 260,000 times."""
    shard = write_release(tmp_path / "a.parquet", "flaky")
    records = run(shard, rooms, tmp_path / "log.jsonl", ["flaky"], runs=10)
    assert verdict(records) == "flaky"
    assert {each.outcome for each in records if each.patch is Patch.EMPTY} == {Outcome.UNSOLVED}


def test_tests_that_never_end_are_stopped_and_the_gold_patch_fails(tmp_path: Path, images: Path) -> None:
    rooms = local_rooms(images, timeout_s=1, scratch=tmp_path / "scratch")
    shard = write_release(tmp_path / "a.parquet", "slow")
    records = run(shard, rooms, tmp_path / "log.jsonl", ["slow"], runs=1)
    assert verdict(records) == "gold_fails"
    assert {each.error for each in records} == {"the tests were stopped at their time limit"}


def test_what_is_in_the_log_is_not_run_again_unless_its_inputs_changed(
    tmp_path: Path, images: Path, rooms: TaskRooms
) -> None:
    shard = write_release(tmp_path / "a.parquet", "right", "empty_passes", "no_such_file")
    log, names = tmp_path / "log.jsonl", ["right", "empty_passes", "no_such_file"]
    run(shard, rooms, log, names[:1], runs=1)
    first = log.read_bytes()
    run(shard, rooms, log, names, runs=1)
    second = log.read_bytes()
    assert second.startswith(first) and second.count(b"\n") == 6
    again = run(shard, rooms, log, names, runs=1)
    third = log.read_bytes()
    assert third.startswith(second) and third.count(b"\n") == 8, "only runs without a verdict are repeated"
    assert len(again) == 6
    run(shard, local_rooms(images, timeout_s=31, scratch=tmp_path / "s"), log, names[:1], runs=1)
    assert log.read_bytes().count(b"\n") == 10, "another time limit asks for new runs"


def test_an_image_that_is_absent_stops_the_stage_at_once(tmp_path: Path) -> None:
    shard = write_release(tmp_path / "a.parquet", "right")
    rooms = local_rooms(tmp_path / "none", timeout_s=30, scratch=tmp_path / "scratch")
    with pytest.raises(UserError, match=r"there is no image at .*gauge\.0badcafe"):
        run(shard, rooms, tmp_path / "log.jsonl", ["right"], runs=1)


def test_too_many_runs_without_a_verdict_stop_the_stage(tmp_path: Path, rooms: TaskRooms) -> None:
    shard = write_release(tmp_path / "a.parquet", "right", "no_such_file")
    log, names = tmp_path / "log.jsonl", ["right", "no_such_file"]
    with pytest.raises(UserError, match=r"2 of 4 test runs have no verdict .*: 40\.0%.*no_such_file"):
        run(shard, rooms, log, names, runs=1, max_invalid_fraction=0.4)
    kept = [
        row["instance_id"].removeprefix(PREFIX) for row in read_jsonl(log) if row["outcome"] != "grader_error"
    ]
    assert kept == ["right", "right"], "what had a verdict stays in the log"
    assert len(run(shard, rooms, log, names, runs=1, max_invalid_fraction=0.5)) == 4


def test_patches_of_any_bytes_go_through_the_workspace(rooms: TaskRooms) -> None:
    """CR LF, no line end at the end, a here-document's end: reversed as they are."""
    (buggy,) = (
        BuggyTask(task.task, task.bug.removesuffix(b"\n") if task.task.instance_id.endswith("right") else b"")
        for task in [_task("right")]
    )
    assert validate_once(buggy, Patch.GOLD, 0, rooms).outcome is Outcome.SOLVED
    garbage = BuggyTask(buggy.task, b"END\nexit 0\n'\"$(touch /testbed/x)\0\xff\r\n" * 3000)
    record = validate_once(garbage, Patch.GOLD, 0, rooms)
    assert record.outcome is Outcome.UNSOLVED
    assert "cannot be reversed" in (record.error or "")


def _task(name: str) -> BuggyTask:
    from lightning_smith.contracts.task import RolloutTask

    return BuggyTask(RolloutTask.from_row(row(name)), row(name)["patch"].encode())


def test_the_script_goes_on_where_it_was_killed(tmp_path: Path, images: Path) -> None:
    names = ["right", "gold_fails", "empty_passes", "gold_is_garbage"]
    shard = write_release(tmp_path / "a.parquet", *names)
    write_decisions(tmp_path / "test_count.tsv", Decisions("test_count", {PREFIX + n: None for n in names}))
    out = tmp_path / "validation" / "0.jsonl"
    told = ValidateStage(
        validation=Validation(runs=3, parts=1, max_invalid_fraction=0.0),
        grade=Grade.ALL,
        grading_timeout_s=30,
        workspace="bwrap",
        tests="image",
        images=images,
        work=tmp_path / "live",
    )
    command = [
        *(sys.executable, "scripts/funnel/validate_tasks.py", "--settings", write_settings(tmp_path, told)),
        *("--shards", str(shard), "--previous", str(tmp_path / "test_count.tsv"), "--out", str(out)),
    ]
    started = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (logs := list(tmp_path.glob("live/*/0.jsonl"))) or logs[0].read_bytes().count(b"\n") < 5:
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    (log,) = logs
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    kept = log.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert kept.count(b"\n") < 24 and not out.exists()

    again = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr[-2000:]
    assert log.read_bytes().startswith(kept)
    seen = [(each["instance_id"], each["patch"], each["run"]) for each in read_jsonl(log)]
    assert len(seen) == len(set(seen)) == 24, "no run was made twice"
    assert "4 tasks: 1 empty_passes, 2 gold_fails, 1 valid" in again.stdout
    assert "/24 test runs" in again.stderr
    other = [*command, "--set", "grading_timeout_s=31", "--set", "validation.runs=1"]
    narrower = subprocess.run(other, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert (
        "[validate] timeout_s is 31.0 instead of 30.0" in narrower.stderr
        and "8/8 test runs, " in narrower.stderr
    )
    assert sorted(path.read_bytes().count(b"\n") for path in tmp_path.glob("live/*/0.jsonl")) == [8, 24]
    again = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert "24/24 test runs, 0.0/s" in again.stderr, "the runs under the first settings count again"

    flags = ["--shards", str(shard), "--previous", str(tmp_path / "test_count.tsv"), "--runs", "3"]
    decisions = tmp_path / "validated.tsv"
    filtered = [
        sys.executable,
        "scripts/funnel/filter_validated.py",
        *flags,
        "--logs",
        str(out),
        "--out",
        str(decisions),
    ]
    subprocess.run(filtered, cwd=REPOSITORY, check=True)
    assert read_decisions(decisions).reasons == {PREFIX + name: EXPECTED[name] for name in names}
    assert json.loads(out.read_text().splitlines()[0])["run"] == 0


def test_a_workspace_that_this_version_lacks_is_named() -> None:
    from lightning_smith.grading.validate import validation_rooms

    with pytest.raises(UserError, match=r"the workspace 'ship' is unknown: it is bwrap, docker or pod"):
        validation_rooms(
            "ship", Path("images"), tests="image", grade="all", timeout_s=1, scratch=Path("scratch")
        )
