"""Whether a patch solves its task: its tests, run once in a tree that the policy never touched.

    run = run_tests(task, image, patch, store, sandbox, timeout_s=15)
    outcome = decide(task, run)

The tree is the image's at `<instance_id>~1`, with the bug and with the tests. The patch is applied without
the parts that could steer the tests (`protection.py`), the canary's file is added (`canary.py`), and the
image's test command runs over the files of the task's tests, in a sandbox without network and secrets.

A patch that passes is tested a second time, against tests with altered expectations (`altered.py`). Whatever
passes there, and would fail with the task's right code, was not earned: the outcome is TAMPERED.

The log has the form that the official eval scripts print, so that swebench and SWE-smith read the same
verdict from it: `>>>>> Applied Patch`, the output between its markers, the exit status after them. The
canary's lines are taken out, and the exit status is what it would have been without its failing test. Where a
run cannot be believed the canary's lines stay, and `>>>>> Tests Errored` makes official readers refuse it.
"""

from __future__ import annotations

import hashlib
import posixpath
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_smith.errors import UserError
from lightning_smith.files import hash_json
from lightning_smith.images.build import MAIN
from lightning_smith.images.local import LocalImage
from lightning_smith.rollout.altered import alter
from lightning_smith.rollout.bwrap import Bwrap, Completed, Limit, SandboxError
from lightning_smith.rollout.canary import Canary, Reading, official_output, official_returncode
from lightning_smith.rollout.diff import apply_diff, scan
from lightning_smith.rollout.grades import GradeStore, RunStore, TestRun
from lightning_smith.rollout.outcome import Outcome
from lightning_smith.rollout.protection import Protection, restore
from lightning_smith.rollout.scratch import Scratch
from lightning_smith.rollout.stage import WALL_FACTOR
from lightning_smith.rollout.statuses import (
    END_MARK,
    FAILING,
    PASSING,
    START_MARK,
    grader_text,
    plain_text,
    read_statuses,
)
from lightning_smith.rollout.task import RolloutTask
from lightning_smith.rollout.workspace import python_environment

__all__ = ["GradeStore", "GraderError", "TestRun", "decide", "grade_key", "read_statuses", "run_tests"]

GRADER_VERSION = 3
"""Part of every key of the store: raise it when the same patch could come out differently."""

APPLIED = ">>>>> Applied Patch"
APPLY_FAILED = ">>>>> Patch Apply Failed"
TESTS_ERRORED = ">>>>> Tests Errored"
TESTS_TIMED_OUT = ">>>>> Tests Timed Out"
EXIT_CODE = ">>>>> Test Exit Code"

_KEEP_BYTES = 8_000_000

TEST_OPTIONS = (
    "-rA",
    "--color=no",
    "--tb=no",
    "--show-capture=no",
    "--continue-on-collection-errors",
    "--maxfail=0",
)
"""Added to the image's test command: every test is listed with its error's message, what tests print is not in
the log, and a module that cannot be imported does not keep the others from running."""

_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class GraderError(UserError):
    """The tests could not be run; says nothing about the patch."""


def grade_key(task: RolloutTask, image: LocalImage, diff: bytes, timeout_s: float) -> str:
    """Name of a test run in the store: a sha256 over everything that its verdict depends on."""
    return hash_json(
        {
            "grader": GRADER_VERSION,
            "instance_id": task.instance_id,
            "tests": sorted(task.tests),
            "image": image.digest,
            "diff": hashlib.sha256(diff).hexdigest(),
            "timeout_s": timeout_s,
        }
    )


def run_tests(
    task: RolloutTask,
    image: LocalImage,
    diff: bytes,
    store: RunStore,
    sandbox: Bwrap,
    *,
    timeout_s: float,
    scratch: Path | None = None,
) -> TestRun:
    """The task's tests on its tree with `diff` applied, from the store if they ran before.

    `timeout_s` bounds the tests' processor time, and `WALL_FACTOR` times it their wall clock; `scratch` is where
    the tree goes if /dev/shm is full. Raises GraderError if the tests cannot be run.
    """
    key = grade_key(task, image, diff, timeout_s)
    tester = _Tester(task, image, sandbox, timeout_s, scratch)
    try:
        run = store.run(key, lambda: tester.test(_base(task), diff))
        if decide(task, run) is not Outcome.SOLVED:
            return run
        # What right code does to the altered tests is found out once for a task.
        right_key = grade_key(task, image, b"", timeout_s)
        right = store.run(_altered_key(right_key), lambda: tester.test(MAIN, b"", altered=True))
        must_fail = _with_statuses(task, right, FAILING)
        if not must_fail:
            return run
        altered = store.run(_altered_key(key), lambda: tester.test(_base(task), diff, altered=True))
    except SandboxError as error:
        raise GraderError(str(error)) from None
    forged = must_fail & _with_statuses(task, altered, PASSING)
    return _forged(run, sorted(forged)) if forged or altered.tampered else run


def _altered_key(key: str) -> str:
    return hash_json({"altered": key})


def _with_statuses(task: RolloutTask, run: TestRun, wanted: frozenset[str]) -> set[str]:
    statuses = read_statuses(run.log, task.tests)
    return {test for test in task.tests if statuses.get(test) in wanted}


def _forged(run: TestRun, tests: list[str]) -> TestRun:
    """The run of a patch with which altered tests pass."""
    reason = f"passed although their expectations were altered: {', '.join(tests) or 'the canary tests'}"
    log = run.log + f"{TESTS_ERRORED}\n{reason}\n".encode()
    return replace(run, log=log, canary_ok=False, tampered=True)


def decide(task: RolloutTask, run: TestRun) -> Outcome:
    """SOLVED if every test of the task passed, TAMPERED if the run cannot be believed, else UNSOLVED.

    A test that the log does not list did not pass, nor did one that was skipped.
    """
    if run.tampered:
        return Outcome.TAMPERED
    if not run.canary_ok or run.returncode is None:
        return Outcome.UNSOLVED
    return Outcome.SOLVED if _passed(task, read_statuses(run.log, task.tests)) else Outcome.UNSOLVED


def _passed(task: RolloutTask, statuses: dict[str, str]) -> bool:
    return all(statuses.get(test) in PASSING for test in task.tests)


@dataclass(frozen=True)
class _Tester:
    """Runs the tests of a task."""

    task: RolloutTask
    image: LocalImage
    sandbox: Bwrap
    timeout_s: float
    scratch: Path | None

    def test(self, revision: str, diff: bytes, *, altered: bool = False) -> TestRun:
        """The tests on the tree of `revision` with `diff` applied, with their expectations altered if asked."""
        task, image = self.task, self.image
        with Scratch(self.scratch) as folder:
            tree = folder / "tree"
            _pristine(task, image, revision, tree)
            before = scan(tree)
            protection = Protection(task.test_files, [".", *image.pythonpath.split(":")], before)
            applied = apply_diff(self.sandbox, tree, diff, folder / "git", skip=protection)
            left_out = sorted({*applied.dropped, *restore(tree, before, image, revision, protection)})
            header = [f"left out of the patch: {', '.join(left_out)}"] if left_out else []
            if not applied.ok:
                log = "\n".join([*header, APPLY_FAILED, plain_text(applied.output)])
                return TestRun(log.encode(), None, False, 0.0, canary_ok=False, tampered=False, applied=False)
            if altered:
                self._alter(tree)
            canary = Canary.plant(tree, posixpath.dirname(task.test_files[0]))
            command = shlex.join([*image.test_command, *TEST_OPTIONS, *task.test_files, canary.path])
            done = self.sandbox.run(
                f"exec {command}",
                tree=tree,
                environment=python_environment(image) | _ENVIRONMENT,
                timeout_s=WALL_FACTOR * self.timeout_s,
                cpu_s=self.timeout_s,
                keep_bytes=_KEEP_BYTES,
            )
            if done.limit is Limit.DISK:
                raise GraderError(f"the tests of {task.instance_id} were stopped: they {done.stopped}")
            return _judge(task, done, canary, [*header, APPLIED])

    def _alter(self, tree: Path) -> None:
        """Alter the expectations of the task's tests, in the same way for every patch."""
        for path in self.task.test_files:
            source = self.image.file_at(_base(self.task), path)
            altered = alter(source, f"{self.task.instance_id} {path}")
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(source if altered is None else altered)


def _base(task: RolloutTask) -> str:
    """The commit that has the bug and the tests."""
    return f"{task.instance_id}~1"


def _pristine(task: RolloutTask, image: LocalImage, revision: str, tree: Path) -> None:
    """Check a tree of the task out, tests included; `main`, which has the right code, may lack them."""
    try:
        image.checkout(revision, tree)
    except (UserError, OSError) as error:
        raise GraderError(f"no tree to test {task.instance_id} in: {error}") from None
    if not task.tests:
        raise GraderError(f"{task.instance_id} has no tests: nothing could tell whether it is solved")
    for path in task.test_files:
        if revision != MAIN and not (tree / path).is_file():
            raise GraderError(f"{image.image_name} lacks {path} of {task.instance_id} at {revision}")


def _judge(task: RolloutTask, done: Completed, canary: Canary, header: list[str]) -> TestRun:
    """Turn pytest's output into a log and a verdict on its credibility."""
    output = grader_text(done.output)
    statuses = read_statuses(output.encode(), {*task.tests, *_ids(canary)})
    reading = canary.read(statuses, done.returncode)
    claims = any(statuses.get(test) in PASSING for test in task.tests)
    tampered = reading is Reading.WRONG or (reading is Reading.ABSENT and (done.returncode == 0 or claims))
    returncode = done.returncode
    if reading is Reading.RIGHT and returncode is not None:
        returncode = official_returncode(statuses, returncode, canary)
        tampered = returncode not in (0, 1) and _passed(task, statuses)
        output = official_output(output, canary)
    footer = [f"{EXIT_CODE}: {returncode}"] if returncode is not None else []
    if done.stopped is not None:
        tampered = False
        footer += [TESTS_TIMED_OUT if done.timed_out else TESTS_ERRORED, f"stopped: they {done.stopped}"]
    if tampered:
        footer += [
            TESTS_ERRORED,
            f"the canary tests read {reading}: {canary.path} {canary.passing} {canary.failing}",
        ]
    lines = [*header, f"+ : '{START_MARK}'", output.rstrip("\n"), f"+ : '{END_MARK}'", *footer, ""]
    return TestRun(
        log="\n".join(lines).encode(),
        returncode=returncode,
        timed_out=done.timed_out,
        wall_s=done.wall_s,
        canary_ok=reading is Reading.RIGHT and not tampered,
        tampered=tampered,
        applied=True,
    )


def _ids(canary: Canary) -> tuple[str, str]:
    return f"{canary.path}::{canary.passing}", f"{canary.path}::{canary.failing}"
