"""Runs of a task's tests on a tree with a patch: as they are written, altered, or reporting values.

The tree is the image's at `<instance_id>~1`, with the bug and with the tests. The patch is applied without the parts
that could steer the tests (`protection.py`), the canary's file is added (`canary.py`), and the task's tests run as
their plan says (`plan.py`), in a sandbox without network and secrets.
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from lightning_smith.contracts.task import WALL_FACTOR, Grade, RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json
from lightning_smith.grading.altered import ALTERATIONS_VERSION, alter, functions_in
from lightning_smith.grading.assignments import name_of
from lightning_smith.grading.canary import Canary
from lightning_smith.grading.plan import TestPlan, TestPlans
from lightning_smith.grading.protection import Protection, restore, test_folders, unrepairable
from lightning_smith.grading.scan import scan_patch
from lightning_smith.grading.statuses import (
    plain_text,
)
from lightning_smith.grading.store import RunStore, TestRun
from lightning_smith.grading.valued import (
    DESCRIPTOR,
    Valued,
    without_expectations,
)
from lightning_smith.grading.verdict import APPLIED, APPLY_FAILED, judge, statuses_of
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.repositories.tree_files import EXECUTABLE, REGULAR, TreeFile
from lightning_smith.sandbox.bwrap import Limit
from lightning_smith.sandbox.diff import Stamp, changed_paths
from lightning_smith.sandbox.trees import Sandbox, TestTree, open_test_tree

GRADER_VERSION = 16
"""Part of every key of the store: raise it when the same patch could come out differently."""


_KEEP_BYTES = 8_000_000


class GraderError(UserError):
    """The tests could not be run; says nothing about the patch."""


class ReferenceRunError(GraderError):
    """Right code could not be tested: no patch has a part in that."""


@dataclass(frozen=True)
class Variant:
    """A variant of the tests: of all of them, or else of the functions of the FAIL_TO_PASS tests alone."""

    number: int
    others: bool = True


@dataclass(frozen=True)
class AlteredFiles:
    """Contents by path of what is altered, and the names of the functions whose alteration is soft (`Altered`)."""

    contents: Mapping[str, bytes]
    soft: frozenset[str]


@dataclass(frozen=True)
class Tester:
    """Runs the tests of a task.

    `base` is the revision with bug and tests, `right` the one before the bug, which touches the files `touched`.
    """

    task: RolloutTask
    image: Revisions
    base: str
    right: str
    touched: frozenset[str]
    sandbox: Sandbox
    timeout_s: float
    scratch: Path | None
    plans: TestPlans
    plan: TestPlan

    @classmethod
    def make(
        cls,
        task: RolloutTask,
        image: Revisions,
        sandbox: Sandbox,
        timeout_s: float,
        scratch: Path | None,
        plans: TestPlans,
        grade: Grade,
    ) -> Tester:
        base = _base(task, image)
        try:
            plan = plans.plan(task, image, grade)
        except UserError as error:
            raise GraderError(str(error)) from None
        try:
            right = image.right(base)
            touched = frozenset(change.path for change in image.changes(base, since=right))
        except UserError as error:
            raise GraderError(f"no tree to test {task.instance_id} in: {error}") from None
        # Tests that do not decide may be in files to repair, as doctests are.
        files = tuple(path for path in plan.test_files if path not in touched)
        if lost := unrepairable(touched, task.graded(plan.grade).test_files) or (
            not files and sorted(touched)
        ):
            raise GraderError(
                f"no patch can solve {task.instance_id}: its bug is in {lost[0]}, which grades it as well; the funnel "
                "drops such tasks (filter bug_in_tests)"
            )
        plan = replace(plan, test_files=files)
        return cls(
            task, image, base, right, touched, sandbox, plan.timeout_s or timeout_s, scratch, plans, plan
        )

    def key(self, diff: bytes) -> str:
        """Name of a test run in the store: a sha256 over everything that its verdict depends on."""
        return hash_json(
            {
                "grader": GRADER_VERSION,
                "instance_id": self.task.instance_id,
                "tests": [sorted(self.task.fail_to_pass), sorted(self.task.pass_to_pass)],
                "image": self.image.digest,
                "diff": hashlib.sha256(diff).hexdigest(),
                "timeout_s": self.timeout_s,
                "plan": [self.plan.command, self.plan.paths, self.plan.grade, self.plan.harness],
            }
        )

    def scan(self, diff: bytes) -> tuple[str, ...]:
        """Return what the scan finds in a patch, in the files of it that the grader takes."""
        protection = Protection(self.plan.test_files, (), ())
        hits = scan_patch(
            diff,
            before=partial(self._file, self.base),
            accepted=partial(self._file, self.right),
            skip=protection.steers,
        )
        return tuple(map(str, hits))

    def _file(self, revision: str, path: str) -> bytes | None:
        try:
            return self.image.file_at(revision, path)
        except UserError:
            return None

    @cached_property
    def sources(self) -> dict[str, bytes]:
        """The test files as they are, and the modules beside them in folders of tests, which can hold what they assert.

        Raise GraderError if a test file is absent.
        """
        files = self.plan.test_files
        folders = {posixpath.dirname(path) for path in files}
        beside = [
            path
            for path in self.image.files_below(self.base, test_folders(files))
            if posixpath.dirname(path) in folders and _is_helper(posixpath.basename(path))
        ]
        found = {path: self._file(self.base, path) for path in (*files, *beside) if path not in self.touched}
        for path in files:
            if found[path] is None:
                name, task = self.image.image_name, self.task.instance_id
                raise GraderError(f"{name} lacks {path} of {task} at {self.base}")
        return {path: content for path, content in found.items() if content is not None}

    def altered(self, variant: Variant) -> AlteredFiles:
        """Return the test files with the alterations of a variant."""
        if variant not in self._altered:
            only = None if variant.others else self._deciding
            # Tests that code makes as it runs, of tables or files of examples, assert in functions that are none.
            made = not self._functions.issuperset(map(name_of, self.task.tests) if only is None else only)
            found = {
                path: alter(source, path, variant.number, only, helpers=made)
                for path, source in self.sources.items()
            }
            altered = {path: each for path, each in found.items() if each is not None}
            self._altered[variant] = AlteredFiles(
                {path: each.content for path, each in altered.items()},
                frozenset[str]().union(*(each.soft for each in altered.values())),
            )
        return self._altered[variant]

    @cached_property
    def _functions(self) -> set[str]:
        return set().union(*map(functions_in, self.sources.values()))

    @cached_property
    def _deciding(self) -> set[str]:
        return set(map(name_of, self.task.fail_to_pass))

    @cached_property
    def _altered(self) -> dict[Variant, AlteredFiles]:
        return {}

    def right_key(self, variant: Variant) -> str:
        """Name of `test_right` in the store: the same for tasks that differ in nothing that the run depends on."""
        plan, altered = self.plan, None if variant.others else sorted(self._deciding)
        return hash_json(
            {
                "right": [GRADER_VERSION, ALTERATIONS_VERSION, self.image.digest, self.right],
                "variant": [variant.number, altered],
                "plan": [plan.command, plan.paths, plan.test_files, plan.harness, dict(plan.environment)],
            }
        )

    def test_right(self, variant: Variant) -> TestRun:
        """The altered tests on the right code. GraderError if they do not end, or no test has a result."""
        run = self.altered_run(self.right, b"", variant)
        return self._reference(run, f"altered tests (variant {variant.number})")

    def right_values(self, store: RunStore, number: int) -> tuple[bytes, str]:
        """Return the log of a run in which right code reports its values, and the mark of its reports; `number` tells
        runs.

        Raise GraderError if its tests do not end, or none has a result.
        """
        key = hash_json({"values": [number, self.right_key(Variant(0, others=False))]})
        nonce = f"n{key[:15]}"

        def make() -> TestRun:
            return self._reference(self.values_of(self.right, b"", nonce), "tests that report values")

        return store.run(key, make).log, nonce

    def _reference(self, run: TestRun, what: str) -> TestRun:
        if run.returncode is None or not statuses_of(self.task, run):
            why = "ended at their time limit" if run.timed_out else "gave no results"
            raise ReferenceRunError(f"the {what} of {self.task.instance_id} {why} with its right code")
        return run

    def altered_run(self, revision: str, diff: bytes, variant: Variant) -> TestRun:
        """Return the tests with the alterations of a variant."""
        return self.test(revision, diff, self.altered(variant).contents, variant.number)

    def values_of(self, revision: str, diff: bytes, nonce: str) -> TestRun:
        """Return a run in which the tests that decide report values, in lines that start with `nonce`."""
        contents = {path: each.content for path, each in self.valued(nonce).items()}
        return self.test(revision, diff, contents, opening=f"exec {DESCRIPTOR}>&1; ")

    def valued(self, nonce: str) -> dict[str, Valued]:
        """Return those of the test files, without their expectations, that have values to report."""
        found = {
            path: without_expectations(source, path, nonce, self._deciding)
            for path, source in self.sources.items()
        }
        return {path: each for path, each in found.items() if each is not None}

    def test(
        self,
        revision: str,
        diff: bytes,
        contents: Mapping[str, bytes] | None = None,
        variant: int | None = None,
        opening: str = "",
    ) -> TestRun:
        """The tests on the tree of `revision` with `diff` applied, in files that have other `contents`.

        `opening` stands before the tests' command. SWE-smith's harness is asked about the tests as they are written.
        """
        task, image, plan = self.task, self.image, self.plan
        with self._pristine(revision) as tree:
            before = tree.stamps()
            for path in plan.test_files:
                # The right code's revision may lack them.
                if revision == self.base and path not in before:
                    raise GraderError(f"{image.image_name} lacks {path} of {task.instance_id} at {revision}")
            protection = Protection(plan.test_files, tree.import_roots, before, self.touched)
            applied = tree.apply(diff, protection)
            changed = changed_paths(before, tree.stamps())
            put_back = restore(tree, changed, before, image, revision, protection)
            left_out = sorted({*applied.dropped, *put_back})
            header = [f"left out of the patch: {', '.join(left_out)}"] if left_out else []
            unchanged = applied.ok and not applied.empty and not changed
            if not applied.ok or unchanged:
                why = [plain_text(applied.output), *(["the patch changed nothing"] if unchanged else [])]
                log = "\n".join([*header, APPLY_FAILED, *why]).encode()
                return TestRun(
                    log,
                    None,
                    False,
                    0.0,
                    False,
                    tampered=False,
                    applied=False,
                    grade=plan.grade,
                    pytest=plan.pytest,
                )
            self._write_tests(tree, before, contents or {})
            canary = None
            if plan.pytest:
                canary, content = Canary.invent(posixpath.dirname(plan.test_files[0]), before)
                tree.write(canary.path, TreeFile(REGULAR, content))
            done = tree.run(
                opening + plan.script((canary.path,) if canary else (), before),
                environment=plan.environment,
                timeout_s=WALL_FACTOR * self.timeout_s,
                cpu_s=self.timeout_s,
                keep_bytes=_KEEP_BYTES,
            )
        if done.limit in (Limit.DISK, Limit.FILES):
            raise GraderError(f"the tests of {task.instance_id} were stopped: they {done.stopped}")
        judged = judge(task, plan, done, canary, [*header, APPLIED])
        return self._ask_harness(judged) if contents is None else replace(judged, variant=variant)

    def _ask_harness(self, run: TestRun) -> TestRun:
        if run.returncode is None:
            return run
        try:
            return replace(run, harness_resolved=self.plans.resolved(self.task, self.plan, run.log))
        except UserError as error:
            raise GraderError(str(error)) from None

    @contextmanager
    def _pristine(self, revision: str) -> Iterator[TestTree]:
        """A tree of the task that no patch has touched."""
        with ExitStack() as stack:
            try:
                tree = stack.enter_context(open_test_tree(self.sandbox, self.image, revision, self.scratch))
            except (UserError, OSError) as error:
                raise GraderError(f"no tree to test {self.task.instance_id} in: {error}") from None
            yield tree

    def _write_tests(
        self, tree: TestTree, before: Mapping[str, Stamp], contents: Mapping[str, bytes]
    ) -> None:
        """Write the files of the task's tests anew, in every run: a file's time must not tell what it holds."""
        for path in self.sources:
            mode = before[path].mode if path in before else stat.S_IFREG
            if stat.S_ISREG(mode):
                file = TreeFile(
                    EXECUTABLE if mode & stat.S_IXUSR else REGULAR, contents.get(path, self.sources[path])
                )
                tree.write(path, file)


def _is_helper(name: str) -> bool:
    """Return whether a file in a folder of tests is a module that others import."""
    return name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py")


def _base(task: RolloutTask, image: Revisions) -> str:
    """Return the revision that has the bug and the tests."""
    if not task.fail_to_pass:
        raise GraderError(
            f"{task.instance_id} has no FAIL_TO_PASS test: nothing could tell whether it is solved; the funnel drops "
            "such tasks (filter fail_to_pass)"
        )
    try:
        return image.base(task.instance_id)
    except UserError as error:
        raise GraderError(f"no tree to test {task.instance_id} in: {error}") from None
