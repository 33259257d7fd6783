"""What is committed under assets/miniature/tasks: enough tasks, each one fit for the tiny policy."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from lightning_smith.core.files import dump_json
from lightning_smith.miniature.policy.conversation import KINDS, WINDOW_LINES, find_repair, problem_statement
from lightning_smith.miniature.tasks.generate import spoil_some
from lightning_smith.miniature.tasks.table import MiniTask, load_left_out, load_sources, load_tasks

ASSETS = Path(__file__).resolve().parents[3] / "assets" / "miniature"
FOLDER = ASSETS / "tasks"


@pytest.fixture(scope="module")
def train() -> list[MiniTask]:
    return load_tasks(FOLDER, "train")


@pytest.fixture(scope="module")
def heldout() -> list[MiniTask]:
    return load_tasks(FOLDER, "heldout")


def blank(task: MiniTask) -> bool:
    """True if nothing of the statement is visible: white space and format characters do not count."""
    text = task.problem_statement or ""
    return all(char.isspace() or unicodedata.category(char) in ("Cf", "Cc") for char in text)


def test_enough_tasks_of_each_sort(train: list[MiniTask], heldout: list[MiniTask]) -> None:
    sound = [task for task in train if not blank(task) and task.branch]
    assert sum(task.test_count <= 200 for task in sound) >= 640
    assert sum(task.test_count > 200 for task in sound) >= 40
    statements = {task.problem_statement for task in train if blank(task)}
    assert len(statements) >= 4, "absent, empty, white space, invisible"
    assert sum(map(blank, train)) == 18
    assert sum(not task.branch for task in train) == 12
    assert len(heldout) >= 320
    assert all(task.branch and not blank(task) and task.test_count <= 200 for task in heldout)
    assert set(Counter(task.kind for task in train)) == set(KINDS)


def test_roles_share_no_package(train: list[MiniTask], heldout: list[MiniTask]) -> None:
    roles = {source.package: source.role for source in load_sources(ASSETS / "sources.tsv") if source.tests}
    assert {roles[task.package] for task in train} == {"train"}
    assert {roles[task.package] for task in heldout} == {"heldout"}


def test_every_task_can_be_named_and_repaired(train: list[MiniTask], heldout: list[MiniTask]) -> None:
    keys = {source.package: source.key for source in load_sources(ASSETS / "sources.tsv") if source.tests}
    for task in train + heldout:
        first, last = task.window
        assert last - first < WINDOW_LINES
        assert find_repair(task.buggy, task.fixed) is not None, task.instance_id
        assert task.instance_id.startswith(f"{keys[task.package]}.{task.modifier}__")
        assert task.pass_to_pass, task.instance_id
        if not blank(task):
            said = problem_statement(task.entity, task.path, task.kind, first, last)
            assert task.problem_statement == said


def test_no_two_tasks_are_alike(train: list[MiniTask], heldout: list[MiniTask]) -> None:
    seen = Counter((task.package, task.path, task.line, task.buggy) for task in train + heldout)
    assert max(seen.values()) == 1
    assert len({task.instance_id for task in train + heldout}) == len(train) + len(heldout)


def test_the_spoilt_rows_are_those_that_the_generator_spoils(train: list[MiniTask]) -> None:
    committed = (FOLDER / "train.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in committed.splitlines()]
    for row in rows:
        row.pop("branch", None)
        row["problem_statement"] = problem_statement(row["entity"], row["path"], row["kind"], *row["window"])
    spoil_some(rows, 18, 12, {task.instance_id: task.test_count for task in train})
    assert "".join(f"{dump_json(row)}\n" for row in rows) == committed


def test_tasks_come_in_the_order_of_the_generator(train: list[MiniTask], heldout: list[MiniTask]) -> None:
    packages = [source.package for source in load_sources(ASSETS / "sources.tsv")]
    for tasks in (train, heldout):
        keys = [(packages.index(task.package), task.path, task.line, task.buggy) for task in tasks]
        assert keys == sorted(keys)


def test_what_is_left_out_is_no_task(train: list[MiniTask], heldout: list[MiniTask]) -> None:
    keys = {source.key for source in load_sources(ASSETS / "sources.tsv") if source.tests}
    left_out = load_left_out(ASSETS / "left_out.tsv")
    assert not left_out.keys() & {task.instance_id for task in train + heldout}
    assert {name.rpartition(".")[0] for name in left_out} <= keys


def test_the_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
