"""Reading a local image: its branches, and the tree of any of its commits.

image = LocalImage.open(Path("work/mini/images/swesmith.x86_64.pypi_1776_boltons.d39cfd15"))
image.checkout(instance_id, folder)             # what the agent sees
image.checkout(f"{instance_id}~1", folder)      # what the grader starts from
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, read_json
from lightning_smith.core.git import GitError, git
from lightning_smith.repositories.revisions import MAIN, Revisions
from lightning_smith.repositories.tree_files import write_file


@dataclass(frozen=True)
class LocalImage(Revisions):
    """An image as `build.build_image` wrote it."""

    folder: Path
    image_name: str
    digest: str
    package: str
    version: str
    pythonpath: str
    """What goes on PYTHONPATH, relative to the checkout; `:` separates several."""
    test_command: tuple[str, ...]
    sdist: str
    sdist_sha256: str

    @classmethod
    def open(cls, folder: Path) -> LocalImage:
        """Read `image.json`. Raise UserError if the image is absent or half built."""
        if not (folder / "image.json").is_file():
            raise UserError(f"there is no image at {folder}: build it (scripts/miniature/build_image.py)")
        about: dict[str, Any] = read_json(folder / "image.json")
        try:
            return cls(folder, **{**about, "test_command": tuple(about["test_command"])})
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{folder}/image.json is of another version ({error}): build the image again"
            ) from None

    @property
    def repository(self) -> Path:
        return self.folder / "repository.git"

    def base(self, branch: str) -> str:
        return f"{branch}~1"

    def branches(self) -> set[str]:
        """Return every branch but `main`: the instance ids whose code the image has."""
        return set(branch_heads(self.repository)) - {MAIN}

    def verify(self) -> None:
        """UserError if the repository is not the one that `image.json` describes."""
        try:
            found = repository_digest(self.repository)
        except GitError as error:
            raise UserError(
                f"the repository of the image {self.folder} cannot be read ({error}): build it again"
            ) from None
        if found != self.digest:
            raise UserError(
                f"image {self.folder} has digest {found} instead of {self.digest}: build it again"
            )

    def checkout(self, revision: str, dest: Path, *, pyc: bool = True) -> None:
        """Write the tree of a commit at `dest` (absent or empty; its parents are made), without .git.

        With `pyc`, unchanged files have their byte code beside them. UserError for an unknown revision.
        """
        files = self.changed_files(revision)
        dest.mkdir(parents=True, exist_ok=True)
        _copy_tree(str(self.folder / "tree"), str(dest))
        if pyc:
            _copy_tree(str(self.folder / "pyc"), str(dest))
        # Deletions first: a commit may replace a folder by a file, or a file by a folder.
        for path, file in files.items():
            _forget_byte_code(dest / path)
            if file is None:
                _delete(dest, path)
        for path, file in files.items():
            if file is not None:
                write_file(dest / path, file)


def _copy_tree(source: str, dest: str) -> None:
    """Copy files, links, modes and folders below `source` into `dest`, which may hold others already.

    In this process and on plain strings, since every rollout starts with it: `cp -a` and pathlib cost two to
    three times the CPU for a tree of some hundred small files.
    """
    with os.scandir(source) as entries:
        for entry in entries:
            target = f"{dest}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)  # noqa: PTH115, PTH211
            elif entry.is_dir():
                if not os.path.isdir(target):  # noqa: PTH112
                    os.mkdir(target)  # noqa: PTH102
                _copy_tree(entry.path, target)
            else:
                _copy_file(entry.path, target)


def _copy_file(source: str, target: str) -> None:
    reading = os.open(source, os.O_RDONLY)
    try:
        status = os.fstat(reading)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(writing, status.st_mode & 0o777)
            done = 0
            while done < status.st_size:
                sent = os.sendfile(writing, reading, done, status.st_size - done)
                if not sent:
                    raise UserError(f"{source} shrank while it was copied: build the image again")
                done += sent
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _forget_byte_code(source: Path) -> None:
    """Remove the byte code of a source file that changed, with its folder if that was the last."""
    cache = source.parent / "__pycache__"
    if source.suffix == ".py" and cache.is_dir():
        for entry in os.scandir(cache):
            if entry.name.startswith(f"{source.stem}.") and entry.name.endswith(".pyc"):
                Path(entry.path).unlink()
        with suppress(OSError):
            cache.rmdir()


def _delete(root: Path, name: str) -> None:
    """Remove one file, and the folders above it that are left empty, as git does."""
    path = root / name
    path.unlink()
    for folder in path.parents:
        if folder == root:
            return
        try:
            folder.rmdir()
        except OSError:
            return


def repository_digest(repository: Path) -> str:
    """`sha256:<hex>` over the tree of `main` and the name and head of every branch."""
    tree = git(repository, "rev-parse", f"{MAIN}^{{tree}}").decode().strip()
    return f"sha256:{hash_json({'tree': tree, 'branches': branch_heads(repository)})}"


def branch_heads(repository: Path) -> dict[str, str]:
    """Return the commit of every branch, `main` included, by name in alphabetical order."""
    listed = git(
        repository, "for-each-ref", "--sort=refname", "--format=%(objectname) %(refname)", "refs/heads/"
    )
    rows = (line.split(" ", 1) for line in listed.decode().splitlines())
    return {name.removeprefix("refs/heads/"): commit for commit, name in rows}
