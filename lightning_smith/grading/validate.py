"""Whether tasks are what they say: the gold patch passes and no patch at all does not, several times over.

    rooms = TaskRooms(open_room("bwrap", images), ImageTests(), timeout_s=15, scratch=scratch)
    validate(lambda: buggy_tasks(shards, wanted), rooms, ValidationLog(path), runs=2, workers=2, total=len(wanted))

A run takes the way of a rollout: a workspace at the task's branch, where the bug's patch is reversed by a command
(or none is given), a diff taken by the harness, and the grader of rollouts. Each run has both to itself.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.contracts.validation import Patch, ValidationLog, ValidationRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, read_jsonl
from lightning_smith.core.progress import Progress
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.plan import TestPlans
from lightning_smith.grading.statuses import PASSING
from lightning_smith.grading.store import FreshRuns, TestRun
from lightning_smith.grading.tester import GRADER_VERSION
from lightning_smith.grading.verdict import decide, disagreement, statuses_of
from lightning_smith.repositories.names import image_key
from lightning_smith.sandbox.diff import NO_CONVERSION, DiffRefusedError
from lightning_smith.sandbox.rooms import Room, open_room
from lightning_smith.sandbox.scratch import Scratch
from lightning_smith.sandbox.workspace import Observation, Workspace

_EXAMPLES = 5
_REVERSE_TIMEOUT_S = 120.0
_WINDOW_FACTOR = 4
_LINE = 76
_KEEP_BYTES = 100_000

# The ways in which SWE-smith's harness applies a gold patch: git, or else patch with some tolerance. Without
# --forward the latter would put the bug into a tree that lacks it ("Unreversed patch detected! Ignoring -R."). Git has
# a repository of its own here: in one above the tree it would skip every file, and call that success. It converts
# nothing: the branch's files are laid out byte for byte, whatever the tree's .gitattributes say.
_REVERSE = """
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 LC_ALL=C.UTF-8
export GIT_DIR=/tmp/bug.git GIT_WORK_TREE="$PWD"
command -v git base64 >/dev/null || {{ echo 'the image lacks git or base64'; exit 3; }}
base64 -d > /tmp/bug.diff <<'END' || exit 3
{data}
END
git init --quiet --template= && mkdir -p "$GIT_DIR/info" || exit 3
echo '{attributes}' > "$GIT_DIR/info/attributes"
git apply --reverse --verbose --whitespace=nowarn /tmp/bug.diff && exit 0
command -v patch >/dev/null || exit 1
echo 'trying patch --reverse --fuzz=5'
patch --batch --forward --reverse --fuzz=5 --no-backup-if-mismatch --reject-file=- -p1 -i /tmp/bug.diff || exit 1
"""


@dataclass(frozen=True)
class BuggyTask:
    """A task and the patch that made its bug."""

    task: RolloutTask
    bug: bytes

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> BuggyTask:
        """Read a SWE-smith row that has a patch; `where` names it in a UserError."""
        return cls(RolloutTask.from_row(row, where), row["patch"].encode())


class Rooms(Protocol):
    """Where tasks are validated. Its UserErrors are the machine's, never the task's."""

    @property
    def depends_on(self) -> Mapping[str, Any]:
        """What an outcome depends on beside the task, its image and the patch."""
        ...

    def image_digest(self, task: RolloutTask) -> str:
        """Digest of the task's image. Raise UserError if there is none."""
        ...

    def workspace(self, task: RolloutTask) -> AbstractContextManager[Workspace]:
        """Return a workspace of its own at the task's branch."""
        ...

    def test(self, task: RolloutTask, diff: bytes) -> TestRun:
        """The task's tests on a pristine tree with `diff` applied, run anew at each call."""
        ...


class TaskRooms:
    """Rooms of one kind of workspace.

    Args:
        room: workspaces and grader.
        plans: who says how tasks are tested.
        timeout_s: as in `grading.run_tests`.
        scratch: where trees go if /dev/shm is full.
        grade: which of a task's tests decide.
    """

    def __init__(
        self,
        room: Room,
        plans: TestPlans,
        *,
        timeout_s: float,
        scratch: Path,
        grade: Grade = Grade.ALL,
    ) -> None:
        self._room, self._plans, self._scratch = room, plans, scratch
        self._timeout_s, self._grade = timeout_s, grade
        self._store = FreshRuns()

    @property
    def depends_on(self) -> dict[str, Any]:
        return {
            "timeout_s": self._timeout_s,
            "grade": self._grade.value,
            "harness": self._plans.versions,
        }

    def image_digest(self, task: RolloutTask) -> str:
        return self._room.image(task.image_name).digest

    @contextmanager
    def workspace(self, task: RolloutTask) -> Iterator[Workspace]:
        image = self._room.image(task.image_name)
        with (
            Scratch(self._scratch) as scratch,
            self._room.workspace(
                image, task.instance_id, scratch / "validation", keep_bytes=_KEEP_BYTES
            ) as workspace,
        ):
            yield workspace

    def test(self, task: RolloutTask, diff: bytes) -> TestRun:
        return run_tests(
            task,
            self._room.image(task.image_name),
            diff,
            self._store,
            self._room.sandbox,
            timeout_s=self._timeout_s,
            scratch=self._scratch,
            plans=self._plans,
            grade=self._grade,
        )


def buggy_tasks(shards: Iterable[Path], wanted: set[str]) -> Iterator[BuggyTask]:
    """Yield the wanted tasks of a release, a batch of rows in memory at a time."""
    from lightning_smith.release.columns import SCHEMA, iter_batches

    columns = [name for name in SCHEMA.names if name != "problem_statement"]
    for batch in iter_batches(shards, columns, wanted=wanted):
        for row in batch.to_pylist():
            yield BuggyTask.from_row(row, f"row {row['instance_id']}")


def buggy_rows(paths: Iterable[Path], key: str) -> Iterator[BuggyTask]:
    """Yield the tasks of an image that have FAIL_TO_PASS tests, of JSON lines. Raise UserError for a row without a
    patch.
    """
    for path in paths:
        for number, row in enumerate(read_jsonl(path), start=1):
            where = f"{path} row {number}"
            task = RolloutTask.from_row(row, where)
            if task.fail_to_pass and image_key(task.image_name) == key:
                if not isinstance(row.get("patch"), str):
                    raise UserError(f"{where} has no patch: it is no SWE-smith row")
                yield BuggyTask(task, row["patch"].encode())


def draw_ids(instance_ids: Iterable[str], count: int) -> set[str]:
    """`count` ids, or all of fewer: those that hash lowest, whatever their order."""
    return set(heapq.nsmallest(count, instance_ids, key=lambda name: hashlib.sha256(name.encode()).digest()))


def part_of(instance_ids: Iterable[str], shard: int, shards: int) -> set[str]:
    """Shard `shard` of `shards` equal parts: neighbours in the alphabet, so that few images are in each."""
    ids = sorted(instance_ids)
    return set(ids[len(ids) * shard // shards : len(ids) * (shard + 1) // shards])


def validate(
    tasks: Callable[[], Iterable[BuggyTask]],
    rooms: Rooms,
    log: ValidationLog,
    *,
    runs: int,
    workers: int,
    total: int,
    retries: int = 2,
    max_invalid_fraction: float = 0.0,
) -> list[ValidationRecord]:
    """Run what the log lacks, `workers` at a time; returns a record for each task, patch and run, sorted.

    `tasks` gives the tasks anew at each call, `total` is their number. All tasks are run once before any is run
    again, so that a fault that comes and goes with the hour shows. A run without a verdict is repeated up to
    `retries` times. Raise UserError as soon as more than `max_invalid_fraction` of all runs have none, and for a
    task whose image is absent.
    """
    planned = total * runs * len(Patch)
    progress = Progress("validate", planned, unit="test runs")
    records: list[ValidationRecord] = []
    invalid = 0
    with ThreadPoolExecutor(workers) as pool:
        try:
            todo = _todo(tasks, rooms, log, runs, records, progress)
            for record in _bounded(pool, todo, partial(_logged, log, retries), workers * _WINDOW_FACTOR):
                records.append(record)
                passed = float(record.outcome is Outcome.SOLVED)
                gold = record.patch is Patch.GOLD
                progress.step(gold=passed if gold else None, empty=None if gold else passed)
                invalid += not record.valid
                if invalid > max_invalid_fraction * planned:
                    raise UserError(
                        f"{invalid} of {planned} test runs have no verdict after all retries (allowed: "
                        f"{max_invalid_fraction:.1%}), such as {record.instance_id} with its {record.patch} patch "
                        f"({record.error}): remedy that and run the same command again, {log.path} keeps the others"
                    )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    progress.close()
    return sorted(records, key=lambda record: record.key)


_Item = tuple[BuggyTask, Patch, int, Rooms]


def _todo(
    tasks: Callable[[], Iterable[BuggyTask]],
    rooms: Rooms,
    log: ValidationLog,
    runs: int,
    records: list[ValidationRecord],
    progress: Progress,
) -> Iterator[_Item]:
    """Yield what the log lacks; what it has goes to `records`."""
    for run in range(runs):
        for buggy in tasks():
            inputs = _inputs(buggy, rooms)
            for patch in Patch:
                key = buggy.task.instance_id, patch.value, run
                known = log.get(key)
                if known is not None and log.done(key, inputs):
                    records.append(known)
                    progress.skip()
                else:
                    yield buggy, patch, run, rooms


def _bounded[T, R](
    pool: ThreadPoolExecutor, items: Iterable[T], work: Callable[[T], R], window: int
) -> Iterator[R]:
    """Results in order of their end; at most `window` items are taken ahead."""
    source = iter(items)
    active: set[Future[R]] = {pool.submit(work, item) for item in islice(source, window)}
    while active:
        ended, active = wait(active, return_when=FIRST_COMPLETED)
        for future in ended:
            yield future.result()
        active |= {pool.submit(work, item) for item in islice(source, len(ended))}


def _logged(log: ValidationLog, retries: int, item: _Item) -> ValidationRecord:
    """Return a record with a verdict if one of the tries gives any; in the log even if the stage is being stopped."""
    record = validate_once(*item)
    for _ in range(retries):
        if record.valid:
            break
        record = validate_once(*item)
    log.append(record)
    return record


def validate_once(buggy: BuggyTask, patch: Patch, run: int, rooms: Rooms) -> ValidationRecord:
    """One run of one patch. A failure of the machine is the outcome GRADER_ERROR."""
    started_s = time.monotonic()
    task, outcome = buggy.task, Outcome.UNSOLVED
    tested: TestRun | None = None
    try:
        diff, error = _take_diff(buggy, patch, rooms)
        if error is None:
            tested = rooms.test(task, diff)
            outcome = decide(task, tested)
            error = None if tested.applied else "the diff of the workspace does not apply in the grader"
            if outcome is Outcome.GRADER_ERROR:
                error = disagreement(task, tested)
    except DiffRefusedError as refused:
        error = str(refused)
    except UserError as failure:
        outcome, error = Outcome.GRADER_ERROR, str(failure)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        outcome, error = Outcome.GRADER_ERROR, f"{type(failure).__name__}: {failure}"
    tests = dict.fromkeys(task.graded(tested.grade).tests if tested is not None else task.tests)
    statuses = statuses_of(task, tested) if tested is not None else {}
    passed = sorted(test for test in tests if statuses.get(test) in PASSING)
    failed = [test for test in tests if statuses.get(test) not in PASSING] if tested is not None else []
    if tested is not None and tested.timed_out:
        error = "the tests were stopped at their time limit"
    return ValidationRecord(
        instance_id=task.instance_id,
        patch=patch,
        run=run,
        outcome=outcome,
        inputs_sha256=_inputs(buggy, rooms),
        image_digest=rooms.image_digest(task),
        failed=len(failed) if tested is not None and tested.applied else None,
        failed_tests=tuple(failed[:_EXAMPLES]),
        passed_sha256=hash_json(passed) if tested is not None and tested.returncode is not None else None,
        wall_s=round(time.monotonic() - started_s, 3),
        error=error,
    )


def _take_diff(buggy: BuggyTask, patch: Patch, rooms: Rooms) -> tuple[bytes, str | None]:
    """Return the diff that the patch leaves, or why there is none. UserError if the workspace fails."""
    with rooms.workspace(buggy.task) as workspace:
        if patch is Patch.GOLD:
            observation = workspace.execute(reverse_command(buggy.bug), _REVERSE_TIMEOUT_S)
            if observation.stopped is not None:
                raise UserError(
                    f"reversing the bug of {buggy.task.instance_id} was stopped: it {observation.stopped}"
                )
            if observation.returncode == 1:
                return b"", f"the bug's patch cannot be reversed: {_last_line(observation)}"
            if observation.returncode != 0:
                raise UserError(
                    f"reversing the bug of {buggy.task.instance_id} ended with {observation.returncode}: "
                    f"{_last_line(observation)}"
                )
        diff = workspace.diff()
    if patch is Patch.GOLD and not diff:
        return b"", "the bug's patch changes nothing when it is reversed"
    if patch is Patch.EMPTY and diff:
        raise UserError(f"the workspace of {buggy.task.instance_id} has changes before any command ran")
    return diff, None


def reverse_command(bug: bytes) -> str:
    """Shell script that takes a patch back in the current folder; exit status 1 if that does not work."""
    data = base64.b64encode(bug).decode()
    lines = [data[start : start + _LINE] for start in range(0, len(data), _LINE)]
    return _REVERSE.format(data="\n".join(lines), attributes=NO_CONVERSION.strip())


def _last_line(observation: Observation) -> str:
    return observation.output.decode("utf-8", "replace").strip().split("\n")[-1][:200]


def _inputs(buggy: BuggyTask, rooms: Rooms) -> str:
    """Hash of all that the outcome depends on."""
    return hash_json(
        {
            "grader": GRADER_VERSION,
            "instance_id": buggy.task.instance_id,
            "tests": sorted(buggy.task.tests),
            "image": rooms.image_digest(buggy.task),
            "bug": hashlib.sha256(buggy.bug).hexdigest(),
            **rooms.depends_on,
        }
    )


def validation_rooms(
    workspace: str, images: Path, *, tests: str, grade: str, timeout_s: float, scratch: Path
) -> Rooms:
    """Workspaces and grader for `validate_tasks`; `tests` as in `StageSettings`, `timeout_s` as in `run_tests`.

    `grade` says which of a task's tests decide, as `agent.grade` of the configuration.

    Raise UserError for a kind of workspace that this version does not have, or that cannot be had here.
    """
    room, plans = open_room(workspace, images), open_plans(tests)
    return TaskRooms(room, plans, timeout_s=timeout_s, scratch=scratch, grade=Grade(grade))
