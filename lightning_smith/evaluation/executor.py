"""Runs an instance's official eval script in bubblewrap or in a container, on a tree of the task's image.

What the official runner does in a container: write the patch, try four ways to apply it with a reset in
between, run the eval script with bash in /testbed, keep everything it prints. The tree comes from the
image at the task's base commit and is thrown away afterwards. Equal patches of one task are run once
(`grading/store.py`).

`cross_check` asks the grader of training about the same patch, and `scan` looks into it for what forging results takes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import WALL_FACTOR, RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json
from lightning_smith.evaluation.harness import Answer, Execution, ExecutionError
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.scan import after_patch, scan_patch
from lightning_smith.grading.statuses import PASSING, read_statuses
from lightning_smith.grading.store import GradeStore, TestRun
from lightning_smith.grading.tester import GRADER_VERSION, GraderError
from lightning_smith.grading.verdict import decide
from lightning_smith.release.patches import split_diff
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.sandbox.bwrap import CPU_TIME_EXCEEDED, Limit
from lightning_smith.sandbox.diff import changed_paths
from lightning_smith.sandbox.rooms import Room
from lightning_smith.sandbox.trees import TestTree, open_test_tree

PATCH = "/tmp/patch.diff"

APPLY_TIMEOUT_S = 120.0

_EXIT_CODE = re.compile(rb"^>>>>> Test Exit Code: (\d+)$", re.M)

EXECUTOR_VERSION = 4
"""Part of every key of the store: raise it when the same patch could give another log."""

CROSS_CHECK_VERSION = 2
"""Raise it when `cross_check` could answer otherwise about the same patch."""

SCAN_VERSION = 1
"""Raise it when `scan` could find something else in the same patch."""

_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_TEST_FILE = re.compile(r"(?:test_\w+|\w+_tests?|tests?)\.py")

KEEP_BYTES = 8_000_000
"""Kept of a test run's output from its start, and as much from its end."""

_NOTHING_TO_DO = 10

APPLY = f"""
cd /testbed || exit 1
export GIT_DIR=/tmp/patch.git GIT_WORK_TREE=/testbed GIT_CONFIG_NOSYSTEM=1
trap 'rm -rf {PATCH} "$GIT_DIR"' EXIT
git init --quiet --template=
if git apply --verbose {PATCH}; then exit 0; fi
export GIT_AUTHOR_NAME=grader GIT_AUTHOR_EMAIL=grader@localhost
export GIT_COMMITTER_NAME=grader GIT_COMMITTER_EMAIL=grader@localhost
git add --all --force . && git commit --quiet --no-verify --message base
reset_tree() {{ git checkout -- . ; git clean -fd ; }}
reset_tree; if git apply --verbose --3way {PATCH}; then exit 0; fi
reset_tree; if git apply --verbose --reject {PATCH}; then exit 0; fi
reset_tree; if patch --batch --forward --fuzz=5 -p1 -i {PATCH}; then exit 0; fi
if git apply --check --reverse {PATCH}; then exit {_NOTHING_TO_DO}; fi
exit 1
"""
"""The official attempts in their order, the last of which asks whether the tree has the patch already.

The tree has no .git, and what is above it must have no say: in a repository up there, git would skip every file of the
patch, and call that success.
"""


class SandboxExecutor:
    """An `Execute` for trees of images; safe to call from several threads.

    Args:
        room: images, and where the tests run.
        store: test runs made earlier, those of training among them.
        timeout_s: seconds of processor time that a process of one instance's tests may take. Wall time is bounded
            at WALL_FACTOR times that, so that a busy machine does not decide whether a patch resolves.
        retest_fraction: see `cross_check`.
        scratch: where trees go if there is no room for them in memory.
    """

    def __init__(
        self,
        room: Room,
        store: GradeStore,
        timeout_s: float,
        *,
        retest_fraction: float = 1.0,
        scratch: Path | None = None,
    ) -> None:
        self._room, self._store = room, store
        self._timeout_s, self._retest_fraction, self._scratch = timeout_s, retest_fraction, scratch

    @property
    def versions(self) -> dict[str, Any]:
        """What decides a verdict and an answer of `cross_check`, beside the time limit."""
        return {
            "executor_version": EXECUTOR_VERSION,
            "grader": GRADER_VERSION,
            "retest_fraction": self._retest_fraction,
            "cross_check_version": CROSS_CHECK_VERSION,
            "scan_version": SCAN_VERSION,
        }

    def __call__(self, row: Mapping[str, Any], script: str, patch: bytes) -> Execution:
        """Apply `patch` to the row's base commit and run `script`; an empty patch is not applied.

        Raise ExecutionError if the tree or the sandbox cannot be had.
        """
        try:
            image = self._room.image(row["image"])
            key = self._key(row, image, script, patch)
            run = self._store.run(key, lambda: self._execute(row, image, script, patch))
        except (UserError, OSError) as error:
            raise ExecutionError(str(error)) from error
        return Execution(run.log, applied=run.applied, timed_out=run.timed_out, seconds=run.wall_s)

    def scan(self, row: Mapping[str, Any], patch: bytes) -> tuple[str, ...]:
        """Return what of a patch forging results takes (`grading/scan.py`), but for what the row's gold patch does as
        well.

        The files before the patch are those of the base commit in the image's repository, of which each kind of room
        has a copy on this machine. Files of tests that the rest of the patch does not name are left out: the official
        harness puts its own in their place, or never runs them. Raise ExecutionError if there is no such commit.
        """
        try:
            image = self._room.image(row["image"])
            base = image.commit(row["base_commit"])
        except (UserError, OSError) as error:
            raise ExecutionError(str(error)) from error

        @functools.cache
        def before(path: str) -> bytes | None:
            try:
                return image.file_at(base, path)
            except UserError:
                return None

        accepted = after_patch(row["patch"].encode("utf-8", "surrogateescape"), before)
        hits = scan_patch(patch, before=before, accepted=accepted, skip=_unused_tests(patch))
        return tuple(map(str, hits))

    def cross_check(
        self, row: Mapping[str, Any], patch: bytes, execution: Execution, resolved: bool
    ) -> Answer | None:
        """Return the verdict of the grader of training on a patch whose tests ran to their end.

        Its reader is asked about the official log. Where that agrees that the patch resolves, `retest_fraction` of
        these are tested once more by that grader, which protects the test run from the patch; which ones depends on
        instance and patch alone. If it cannot run, its reader's answer stands.
        """
        task = RolloutTask.from_row({**row, "image_name": row["image"]})
        read = self._read(task, execution)
        if resolved and read is Outcome.SOLVED:
            draw = int(hash_json([task.instance_id, hashlib.sha256(patch).hexdigest()])[:8], 16) / 2**32
            tested = self._decide(task, patch) if draw < self._retest_fraction else None
            if tested is not None:
                return Answer(tested, tested=True)
        return Answer(read, tested=False)

    @staticmethod
    def _read(task: RolloutTask, execution: Execution) -> Outcome:
        statuses = read_statuses(execution.log, task.tests)
        passed = all(statuses.get(test) in PASSING for test in task.tests)
        # The eval script's own line is the last one; what the tests print comes before it.
        exit_codes = _EXIT_CODE.findall(execution.log)
        return Outcome.SOLVED if passed and exit_codes[-1:] == [b"0"] else Outcome.UNSOLVED

    def _decide(self, task: RolloutTask, patch: bytes) -> Outcome | None:
        image = self._room.image(task.image_name)
        try:
            run = run_tests(
                task,
                image,
                patch,
                self._store,
                self._room.sandbox,
                timeout_s=self._timeout_s,
                scratch=self._scratch,
            )
        except GraderError:
            return None
        return decide(task, run)

    def _key(self, row: Mapping[str, Any], image: Revisions, script: str, patch: bytes) -> str:
        """Name of a test run in the store: everything that its log depends on."""
        return hash_json(
            {
                "executor": EXECUTOR_VERSION,
                "image": image.digest,
                "base_commit": row["base_commit"],
                "script": script,
                "patch": hashlib.sha256(patch).hexdigest(),
                "timeout_s": self._timeout_s,
            }
        )

    def _execute(self, row: Mapping[str, Any], image: Revisions, script: str, patch: bytes) -> TestRun:
        with open_test_tree(self._room.sandbox, image, row["base_commit"], self._scratch) as tree:
            if patch:
                encoded = base64.encodebytes(patch).decode()
                command = f"base64 -d > {PATCH} <<'END' || exit 3\n{encoded}END\n{APPLY}"
                before = tree.stamps()
                done = _run(tree, command, APPLY_TIMEOUT_S, APPLY_TIMEOUT_S)
                changed = done.returncode == 0 and changed_paths(before, tree.stamps())
                if not changed and done.returncode != _NOTHING_TO_DO:
                    said = b"" if done.returncode else b"the patch changed nothing\n"
                    return replace(done, log=done.log + said, applied=False, timed_out=False)
            done = _run(tree, script, WALL_FACTOR * self._timeout_s, self._timeout_s)
        # The tests are a child of the script, which goes on after them and prints their status.
        ended = _EXIT_CODE.findall(done.log)[-1:] == [str(CPU_TIME_EXCEEDED).encode()]
        return replace(done, timed_out=done.timed_out or ended)


def _unused_tests(patch: bytes) -> Callable[[str], bool]:
    """Return whether a path is a file of tests whose module no other file of the patch names."""
    others = b"".join(part.data for part in split_diff(patch) if not all(map(_is_test_file, part.names)))

    def unused(path: str) -> bool:
        module = posixpath.basename(path).removesuffix(".py").encode("utf-8", "surrogateescape")
        return _is_test_file(path) and not re.search(rb"\b%s\b" % re.escape(module), others)

    return unused


def _is_test_file(path: str) -> bool:
    *folders, name = path.split("/")
    return _TEST_FILE.fullmatch(name) is not None and not _TEST_FOLDERS.isdisjoint(folders)


def _run(tree: TestTree, command: str, timeout_s: float, cpu_s: float) -> TestRun:
    """One command in the tree.

    A run that was ended for having too many processes leaves a log without its end marker, which the
    official reader does not accept; one that was ended because the disk is full says nothing.
    """
    done = tree.run(command, environment={}, timeout_s=timeout_s, cpu_s=cpu_s, keep_bytes=KEEP_BYTES)
    if done.limit in (Limit.DISK, Limit.FILES):
        raise UserError(f"the tests were stopped: they {done.stopped}")
    return TestRun(
        log=done.output,
        returncode=done.returncode,
        timed_out=done.timed_out,
        wall_s=done.wall_s,
        canary_ok=False,
        tampered=False,
        applied=True,
    )
