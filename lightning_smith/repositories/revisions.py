"""Reading commits of an image's repository, whatever kind of image it is."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.git import GitError, git
from lightning_smith.repositories.names import is_evaluation
from lightning_smith.repositories.tree_files import TreeFile

MAIN = "main"
REMOVE_TESTS_MESSAGE = "Remove F2P Tests"

TEST_COMMAND = (
    "python",
    "-m",
    "pytest",
    "-rA",
    "--color=no",
    "-o",
    "addopts=",
    "-p",
    "no:cacheprovider",
    "--assert=plain",
)
"""Runs test files named after it; `python` is the testbed's, found through PATH.

`addopts=` drops the repository's own options (coverage, doctests, plugins that the testbed lacks); without
assertion rewriting a run starts 0.1 s to 0.3 s sooner and no test module is compiled again.
"""


_NO_BLOB = "0" * 40
_SUBMODULE = "160000"


@dataclass(frozen=True)
class Change:
    """A file of a commit that differs from an earlier one."""

    path: str
    mode: str
    blob: str | None
    """None: the commit lacks the file."""


class Revisions:
    """What an image can say of its commits; a kind of image adds where they are."""

    image_name: str
    digest: str
    test_command: tuple[str, ...]
    """Runs the test files named after it, in the checkout; empty if the image does not say."""

    @property
    def repository(self) -> Path:
        """The bare git directory on this machine, with a branch for each task and `main`."""
        raise NotImplementedError

    def commit(self, revision: str) -> str:
        """Full hash of a branch, a commit or an expression such as `<branch>~1`; else UserError."""
        try:
            return (
                self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
                .decode()
                .strip()
            )
        except GitError:
            raise UserError(f"image {self.image_name} has no branch or commit {revision}") from None

    def start(self, instance_id: str) -> str:
        """Return the revision that an attempt starts from: the task's branch, or, where an image is of one instance of
        the evaluation set alone, what is checked out there.
        """
        return MAIN if is_evaluation(self.image_name) else instance_id

    def base(self, branch: str) -> str:
        """Return the revision of a task that has the bug and all tests: the one before the commit that removes
        tests.
        """
        subject = self._git("log", "-1", "--format=%s", self.commit(branch)).decode().strip()
        return f"{branch}~1" if subject == REMOVE_TESTS_MESSAGE else branch

    def right(self, base: str) -> str:
        """Return the revision with a task's right code: the one that its bug was put into, `base` having both."""
        try:
            before = self.commit(f"{base}~1")
        except UserError:
            return MAIN
        return MAIN if before == self.commit(MAIN) else before

    def file_at(self, revision: str, path: str) -> bytes:
        """Content of one file of a commit. Raise UserError if the commit or the file does not exist."""
        try:
            return self._git("cat-file", "blob", f"{revision}^{{commit}}:{path}")
        except GitError:
            raise UserError(f"image {self.image_name} has no file {path} at {revision}") from None

    def files_below(self, revision: str, folders: Collection[str]) -> list[str]:
        """Return paths of the files of a commit that are in one of the folders, or below it."""
        if not folders:
            return []
        try:
            listed = self._git(
                "ls-tree", "-r", "-z", "--name-only", self.commit(revision), "--", *sorted(folders)
            )
        except GitError:
            raise UserError(f"image {self.image_name} has no branch or commit {revision}") from None
        return [os.fsdecode(path) for path in listed.split(b"\0") if path]

    def changes(self, revision: str, since: str = MAIN) -> list[Change]:
        """Return the files in which a commit differs from an earlier one; submodules are none."""
        try:
            listed = self._git(
                "diff-tree", "-r", "-z", "--raw", "--no-renames", "--end-of-options", since, revision, "--"
            )
        except GitError:
            raise UserError(f"image {self.image_name} has no branch or commit {revision}") from None
        fields = listed.split(b"\0")
        changes = []
        for header, path in zip(fields[0::2], fields[1::2], strict=False):
            before, mode, _, blob, _ = header.decode().split(" ")
            if _SUBMODULE not in (before.removeprefix(":"), mode):
                changes.append(Change(os.fsdecode(path), mode, None if blob == _NO_BLOB else blob))
        return changes

    def changed_files(self, revision: str) -> dict[str, TreeFile | None]:
        """`changes` with contents; None for a file that the commit lacks."""
        changes = self.changes(revision)
        contents = self.contents([change.blob for change in changes if change.blob])
        return {
            change.path: TreeFile(change.mode, contents[change.blob]) if change.blob else None
            for change in changes
        }

    def contents(self, blobs: list[str]) -> dict[str, bytes]:
        """Contents of several blobs in one git process."""
        if not blobs:
            return {}
        answer = self._git("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs).encode())
        contents: dict[str, bytes] = {}
        at = 0
        for blob in blobs:
            end = answer.index(b"\n", at)
            size = int(answer[at:end].split(b" ")[2])
            contents[blob] = answer[end + 1 : end + 1 + size]
            at = end + 1 + size + 1
        return contents

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return git(self.repository, *arguments, stdin=stdin)
