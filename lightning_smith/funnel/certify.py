"""Whether an image grades its tasks as their data set says, asked of the grader of rollouts before the image has a tag.

    certifier = Certifier(daemon, datasets, 2, lambda: open_plans("smith"), timeout_s=600, scratch=folder)
    rows = certifier.certify(daemon.image(image_name), branches)

Preparation takes it as `images.prepare.Certifier`: rollouts know images, and images nothing of rollouts.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

from lightning_smith.config.stages import ImageStage
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import Grade
from lightning_smith.contracts.validation import Patch, ValidationRecord
from lightning_smith.core.errors import UserError
from lightning_smith.funnel.filters import bug_in_tests, fail_to_pass
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.plan import TestPlans
from lightning_smith.grading.validate import (
    BuggyTask,
    TaskRooms,
    buggy_rows,
    buggy_tasks,
    draw_ids,
    validate_once,
)
from lightning_smith.images.daemon import Daemon, FoundImage
from lightning_smith.images.docker import DockerImage
from lightning_smith.release.columns import iter_batches
from lightning_smith.repositories.names import image_key, is_evaluation
from lightning_smith.sandbox.container import ContainerRoom
from lightning_smith.sandbox.docker import DockerSandbox

_TRIES = 2
"""Of a test run without a verdict, and of a gold patch that is not solved: what is asked is whether the image can grade
the task, and tests that measure time fail now and then on a busy machine. `validate` asks whether they always pass."""


class Certifier:
    """Grades the gold patch, and no patch at all, of some tasks of an image; usable from several threads.

    Args:
        datasets: SWE-smith rows, `.jsonl` or `.parquet`.
        tasks: how many tasks of each image; all of one that has fewer.
        plans: who says how tasks are tested, asked for with the first image.
        timeout_s: as in `grading.run_tests`.
        scratch: where trees go if /dev/shm is full.
    """

    def __init__(
        self,
        daemon: Daemon,
        datasets: Sequence[Path],
        tasks: int,
        plans: Callable[[], TestPlans],
        *,
        timeout_s: float,
        scratch: Path,
    ) -> None:
        self._daemon, self._datasets, self._tasks = daemon, datasets, tasks
        self._open_plans, self._timeout_s, self._scratch = plans, timeout_s, scratch
        self._plans: TestPlans | None = None
        self._lock = threading.Lock()

    def wanted(self, image_name: str) -> int:
        """Return how many tasks; none of the evaluation set's images, which hold no branch of a task."""
        return 0 if is_evaluation(image_name) else self._tasks

    def certify(self, image: FoundImage, branches: Set[str]) -> list[dict[str, Any]]:
        """For each task `instance_id`, and what became of its patches, `gold` and `empty`: the outcome and the seconds
        of each one's last run, and the number of its runs.

        UserError that names the task whose gold patch does not pass, whose tests pass without it, or that has no
        verdict, and if no task can be tested.
        """
        drawn = draw(self._datasets, image_key(image.name), branches, self._tasks)
        if not drawn:
            raise UserError(
                f"no task of the image {image.name} can be certified: none that its tests can grade has a branch in it"
            )
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._scratch) as copies:
            room = _OneImageRoom(DockerSandbox.find(self._daemon, Path(copies)), image.id)
            rooms = TaskRooms(room, self._opened(), timeout_s=self._timeout_s, scratch=self._scratch)
            return [_certify(task, rooms, image.name) for task in drawn]

    def _opened(self) -> TestPlans:
        with self._lock:
            if self._plans is None:
                self._plans = self._open_plans()
            return self._plans


class _OneImageRoom(ContainerRoom):
    """Containers of one image, whatever tasks call it: it has no tag before it is proved."""

    def __init__(self, sandbox: DockerSandbox, image_id: str) -> None:
        super().__init__(sandbox)
        self._id = image_id

    def image(self, image_name: str) -> DockerImage:
        return super().image(self._id)


def draw(datasets: Sequence[Path], key: str, branches: Set[str], count: int) -> list[BuggyTask]:
    """`count` tasks of an image that can be tested: those whose ids hash lowest, whatever order the rows have."""
    shards = [path for path in datasets if path.suffix == ".parquet"]
    others = [path for path in datasets if path.suffix != ".parquet"]
    rows = {task.task.instance_id: task for task in buggy_rows(others, key) if _can_be_graded(task)}
    wanted = draw_ids({*_ids_in_shards(shards, key), *rows} & branches, count)
    found = {name: task for name, task in rows.items() if name in wanted}
    found |= {task.task.instance_id: task for task in buggy_tasks(shards, wanted - set(found))}
    return [found[name] for name in sorted(found)]


def _can_be_graded(task: BuggyTask) -> bool:
    tests = task.task.fail_to_pass, task.task.pass_to_pass
    return bug_in_tests.why_dropped(task.bug.decode("utf-8", "replace"), *tests) is None


def _ids_in_shards(shards: Sequence[Path], key: str) -> Iterator[str]:
    """Yield tasks of an image that all their tests can grade."""
    keys: dict[str, str] = {}
    wanted: set[str] = set()
    for batch in iter_batches(shards, ("instance_id", "image_name", *fail_to_pass.COLUMNS)):
        names = batch.column("image_name").to_pylist()
        keys |= {name: image_key(name) for name in set(names) - set(keys)}
        rows = zip(batch.column("instance_id").to_pylist(), names, fail_to_pass.reasons(batch), strict=True)
        wanted |= {instance_id for instance_id, name, reason in rows if reason is None and keys[name] == key}
    columns = ("instance_id", *bug_in_tests.columns(Grade.ALL))
    for batch in iter_batches(shards, columns, wanted=wanted):
        rows = zip(
            batch.column("instance_id").to_pylist(), bug_in_tests.reasons(batch, Grade.ALL), strict=True
        )
        yield from (instance_id for instance_id, reason in rows if reason is None)


def _certify(task: BuggyTask, rooms: TaskRooms, image_name: str) -> dict[str, Any]:
    tested = {patch: _tested(task, patch, rooms) for patch in Patch}
    records = {patch: runs[-1] for patch, runs in tested.items()}
    wrong = [reason for record in records.values() if (reason := _reason(record))]
    if wrong:
        raise UserError(
            f"the image {image_name} does not grade {task.task.instance_id} as its data set says: "
            f"{', and '.join(wrong)}; leave the image out (images.only), or certify no task (images.certify_tasks)"
        )
    return {
        "instance_id": task.task.instance_id,
        **{patch.value: record.outcome.value for patch, record in records.items()},
        "wall_s": {patch.value: record.wall_s for patch, record in records.items()},
        "runs": {patch.value: len(runs) for patch, runs in tested.items()},
    }


def _tested(task: BuggyTask, patch: Patch, rooms: TaskRooms) -> list[ValidationRecord]:
    """Return the test runs of a patch; the last one counts."""
    runs: list[ValidationRecord] = []
    while len(runs) < _TRIES:
        runs.append(record := validate_once(task, patch, len(runs), rooms))
        if record.valid and (patch is Patch.EMPTY or record.outcome is Outcome.SOLVED):
            break
    return runs


def _reason(record: ValidationRecord) -> str | None:
    """Return what is wrong with a test run, as a clause."""
    solved = record.outcome is Outcome.SOLVED
    if not record.valid:
        return f"its {record.patch} patch has no verdict ({record.error})"
    if record.patch is Patch.EMPTY:
        return "its tests pass without any patch" if solved else None
    if solved:
        return None
    example = (
        f"{record.failed} tests do not pass, such as {record.failed_tests[0]}" if record.failed else None
    )
    return f"its gold patch is {record.outcome} ({record.error or example or 'no test has a result'})"


def image_certifier(daemon: Daemon, stage: ImageStage) -> Certifier | None:
    """Return who grades tasks of each Docker image; None if no tasks are to be graded.

    SWE-smith's harness starts with the first image.
    """
    if stage.certify_tasks == 0:
        return None
    return Certifier(
        daemon,
        stage.tasks,
        stage.certify_tasks,
        partial(open_plans, stage.tests),
        timeout_s=float(stage.grading_timeout_s),
        scratch=stage.scratch,
    )
