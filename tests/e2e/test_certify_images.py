"""Images that grade their tasks before they are given a tag, and images that do not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import smith_image
import tiny_image
from layer_fixtures import forget_made, preparation
from smith_image import CLAMP, LOW, MIRRORED, SPAN

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import SMITH_PYTHON
from lightning_smith.funnel.certify import Certifier, draw
from lightning_smith.grading.smith_client import SmithHarness
from lightning_smith.grading.store import TestRun
from lightning_smith.grading.validate import TaskRooms
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.pull import image_at
from lightning_smith.release.columns import SCHEMA

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (tiny_image.TESTBED_PYTHON.exists() and SMITH_PYTHON.exists()),
        reason="needs envs/testbed and envs/smith: uv sync --frozen --project envs/smith",
    ),
]

NAME = smith_image.image_name(CLAMP.repo)
NONE = "tests/test_span.py::test_none"
BRANCHES = frozenset({CLAMP.instance_id, MIRRORED.instance_id})


@pytest.fixture(scope="module")
def harness() -> Iterator[SmithHarness]:
    with SmithHarness.start(SMITH_PYTHON) as harness:
        yield harness


@pytest.fixture(scope="module")
def image(daemon: Daemon, layer: AgentLayer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield smith_image.build(daemon, tmp_path_factory.mktemp("smith"), [CLAMP, MIRRORED])
    forget_made(daemon)


def certifier(
    daemon: Daemon, harness: SmithHarness, folder: Path, *rows: dict[str, Any], tasks: int
) -> Certifier:
    dataset = tiny_image.write_tasks(folder / "tasks.jsonl", *rows)
    return Certifier(
        daemon, [dataset], tasks, lambda: harness, timeout_s=600, scratch=folder / "scratch with a blank"
    )


def test_an_image_that_grades_its_tasks(
    daemon: Daemon, layer: AgentLayer, image: str, harness: SmithHarness, tmp_path: Path
) -> None:
    """The gold patches pass and no patch does not; a manifest of fewer tasks than wanted does not count."""
    plain = preparation(daemon, layer, tmp_path / "out").prepare(image)
    assert plain["certified"] == {"wanted": 0, "tasks": []}
    make = partial(certifier, daemon, harness, tmp_path, CLAMP.row(), MIRRORED.row())
    prepared = preparation(daemon, layer, tmp_path / "out", make(tasks=2))
    manifest = prepared.prepare(image)
    assert manifest["certified"]["wanted"] == 2 and manifest["image"] == plain["image"]
    graded = {task["instance_id"]: (task["gold"], task["empty"]) for task in manifest["certified"]["tasks"]}
    assert graded == dict.fromkeys(BRANCHES, ("solved", "unsolved"))
    assert prepared.prepare(image) == manifest
    assert preparation(daemon, layer, tmp_path / "out", make(tasks=1)).prepare(image) == manifest
    assert not any((tmp_path / "scratch with a blank").iterdir())
    assert make(tasks=2).wanted("swebench/sweb.eval.x86_64.acme_1776_widget-1") == 0
    forget_made(daemon)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"PASS_TO_PASS": [SPAN, NONE]},
            rf"its gold patch is unsolved \(1 tests do not pass, such as {NONE}\)",
        ),
        ({"FAIL_TO_PASS": [SPAN], "PASS_TO_PASS": []}, "its tests pass without any patch"),
        (
            {"repo": "swesmith/pypi__widget.0badcafe"},
            r"its gold patch has no verdict \(.*no Python profile of .*\), and its empty patch has no verdict",
        ),
    ],
    ids=["gold fails", "empty passes", "no profile"],
)
def test_an_image_that_does_not(
    daemon: Daemon, image: str, harness: SmithHarness, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    made = certifier(daemon, harness, tmp_path, CLAMP.row(**changes), tasks=1)
    with pytest.raises(UserError, match=f"{NAME} does not grade {CLAMP.instance_id} as .* says: {reason}"):
        made.certify(daemon.image(image), BRANCHES)
    with pytest.raises(UserError, match=f"no task of the image {NAME} can be certified"):
        made.certify(daemon.image(image), frozenset({MIRRORED.instance_id}))


class BadStart(TaskRooms):
    """Rooms whose first test run is that of no patch: so ends the first run of a gold patch on a machine too busy."""

    started = False

    def test(self, task: RolloutTask, diff: bytes) -> TestRun:
        wanted, self.started = diff if self.started else b"", True
        return super().test(task, wanted)


def test_a_gold_patch_that_fails_once_is_tested_again(
    daemon: Daemon, image: str, harness: SmithHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_smith.funnel.certify.TaskRooms", BadStart)
    (task,) = certifier(daemon, harness, tmp_path, CLAMP.row(), tasks=1).certify(
        daemon.image(image), BRANCHES
    )
    assert (task["gold"], task["empty"], task["runs"]) == ("solved", "unsolved", {"gold": 2, "empty": 1})


def test_no_tag_and_no_manifest_of_an_image_that_does_not(
    daemon: Daemon, layer: AgentLayer, image: str, harness: SmithHarness, tmp_path: Path
) -> None:
    made = certifier(daemon, harness, tmp_path, CLAMP.row(repo="swesmith/pypi__widget.0badcafe"), tasks=1)
    with pytest.raises(UserError, match="has no verdict"):
        preparation(daemon, layer, tmp_path / "out", made).prepare(image)
    assert image_at(daemon, f"{image}:openai") is None and not list((tmp_path / "out").glob("*.json"))


def test_tasks_are_drawn_alike_from_rows_of_both_kinds(tmp_path: Path) -> None:
    """Those with a branch and a failing test, whatever their order; data sets that overlap give a task once."""
    rows = [
        CLAMP.row(instance_id=f"{CLAMP.repo}.t{n}", FAIL_TO_PASS=[LOW] if n % 3 else []) for n in range(30)
    ]
    rows += [CLAMP.row(instance_id=f"{CLAMP.repo}.other", image_name="acme/other")]
    branches = {row["instance_id"] for row in rows[:20]}
    shard = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), shard)
    lines = tiny_image.write_tasks(tmp_path / "tasks.jsonl", *reversed(rows))
    key = NAME.rpartition("/")[2]

    def drawn(datasets: list[Path], key: str, count: int) -> list[tuple[str, tuple[str, ...], bytes]]:
        found = draw(datasets, key, branches, count)
        return [(task.task.instance_id, task.task.tests, task.bug) for task in found]

    five = drawn([shard], key, 5)
    assert len(set(five)) == 5 and {name for name, _, _ in five} <= branches
    assert {(tests, bug) for _, tests, bug in five} == {((LOW, SPAN), CLAMP.row()["patch"].encode())}
    assert drawn([lines], key, 5) == five == drawn([lines, shard, lines], key, 5)
    assert len(drawn([shard], key, 100)) == 13 and drawn([shard], "other", 5) == []
