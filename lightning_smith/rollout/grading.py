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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_smith.errors import UserError
from lightning_smith.files import hash_json
from lightning_smith.images.build import MAIN
from lightning_smith.images.revisions import Revisions
from lightning_smith.images.sdist import REGULAR, TreeFile
from lightning_smith.rollout.altered import alter
from lightning_smith.rollout.bwrap import Completed, Limit, SandboxError
from lightning_smith.rollout.canary import Canary, Reading, official_output, official_returncode
from lightning_smith.rollout.grades import GradeStore, RunStore, TestRun
from lightning_smith.rollout.outcome import Outcome
from lightning_smith.rollout.protection import Protection, restore
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
from lightning_smith.rollout.testtree import Sandbox, TestTree, open_test_tree

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


def grade_key(task: RolloutTask, image: Revisions, diff: bytes, timeout_s: float) -> str:
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
    image: Revisions,
    diff: bytes,
    store: RunStore,
    sandbox: Sandbox,
    *,
    timeout_s: float,
    scratch: Path | None = None,
) -> TestRun:
    """The task's tests on its tree with `diff` applied, from the store if they ran before.

    `timeout_s` bounds the tests' processor time, and `WALL_FACTOR` times it their wall clock; `scratch` is where
    the tree goes if /dev/shm is full. Raises GraderError if the tests cannot be run.
    """
    key = grade_key(task, image, diff, timeout_s)
    base = _base(task, image)
    tester = _Tester(task, image, base, sandbox, timeout_s, scratch)
    try:
        run = store.run(key, lambda: tester.test(base, diff))
        if decide(task, run) is not Outcome.SOLVED:
            return run
        # What right code does to the altered tests is found out once for a task.
        right_key = grade_key(task, image, b"", timeout_s)
        right = store.run(_altered_key(right_key), lambda: tester.test(MAIN, b"", altered=True))
        must_fail = _with_statuses(task, right, FAILING)
        if not must_fail:
            return run
        altered = store.run(_altered_key(key), lambda: tester.test(base, diff, altered=True))
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
    """Runs the tests of a task; `base` is the revision that has the bug and the tests."""

    task: RolloutTask
    image: Revisions
    base: str
    sandbox: Sandbox
    timeout_s: float
    scratch: Path | None

    def test(self, revision: str, diff: bytes, *, altered: bool = False) -> TestRun:
        """The tests on the tree of `revision` with `diff` applied, with their expectations altered if asked."""
        task, image = self.task, self.image
        with self._pristine(revision) as tree:
            before = tree.stamps()
            for path in task.test_files:
                # `main`, which has the right code, may lack them.
                if revision != MAIN and path not in before:
                    raise GraderError(f"{image.image_name} lacks {path} of {task.instance_id} at {revision}")
            protection = Protection(task.test_files, tree.import_roots, before)
            applied = tree.apply(diff, protection)
            left_out = sorted({*applied.dropped, *restore(tree, before, image, revision, protection)})
            header = [f"left out of the patch: {', '.join(left_out)}"] if left_out else []
            if not applied.ok:
                log = "\n".join([*header, APPLY_FAILED, plain_text(applied.output)])
                return TestRun(log.encode(), None, False, 0.0, canary_ok=False, tampered=False, applied=False)
            if altered:
                self._alter(tree)
            canary, content = Canary.invent(posixpath.dirname(task.test_files[0]), before)
            tree.write(canary.path, TreeFile(REGULAR, content))
            command = shlex.join([*image.test_command, *TEST_OPTIONS, *task.test_files, canary.path])
            done = tree.run(
                f"exec {command}",
                environment=_ENVIRONMENT,
                timeout_s=WALL_FACTOR * self.timeout_s,
                cpu_s=self.timeout_s,
                keep_bytes=_KEEP_BYTES,
            )
            if done.limit in (Limit.DISK, Limit.FILES):
                raise GraderError(f"the tests of {task.instance_id} were stopped: they {done.stopped}")
            return _judge(task, done, canary, [*header, APPLIED])

    @contextmanager
    def _pristine(self, revision: str) -> Iterator[TestTree]:
        """A tree of the task that no patch has touched."""
        with ExitStack() as stack:
            try:
                tree = stack.enter_context(open_test_tree(self.sandbox, self.image, revision, self.scratch))
            except (UserError, OSError) as error:
                raise GraderError(f"no tree to test {self.task.instance_id} in: {error}") from None
            yield tree

    def _alter(self, tree: TestTree) -> None:
        """Alter the expectations of the task's tests, in the same way for every patch."""
        for path in self.task.test_files:
            source = self.image.file_at(self.base, path)
            altered = alter(source, f"{self.task.instance_id} {path}")
            tree.write(path, TreeFile(REGULAR, source if altered is None else altered))


def _base(task: RolloutTask, image: Revisions) -> str:
    """The revision that has the bug and the tests."""
    if not task.tests:
        raise GraderError(f"{task.instance_id} has no tests: nothing could tell whether it is solved")
    try:
        return image.base(task.instance_id)
    except UserError as error:
        raise GraderError(f"no tree to test {task.instance_id} in: {error}") from None


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
