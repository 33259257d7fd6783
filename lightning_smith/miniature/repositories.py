"""Building a local image: the miniature's stand-in for the Docker image of one repository.

    build_image(folder, recipe, testbed_python=Path("envs/testbed/.venv/bin/python"))

A folder `<work>/images/<image key>/` of

- `repository.git`: a bare repository. Branch `main` is the unbroken sdist. Each task has a branch of its
  instance id with two commits, as in SWE-smith's images: `Bug Patch`, then `Remove F2P Tests`, which deletes
  every file that holds a FAIL_TO_PASS test. The branch's tip is what the agent gets, `<branch>~1` what the
  grader starts from.
- `tree/`: the files of `main`; `pyc/`: their byte code, by folder, made by the interpreter that runs the
  tests. A checkout copies both and then applies what a commit changes. The byte code is of the checked-hash
  kind (PEP 552): Python compares the source's hash before it uses it, so that byte code of an older source is
  never run. Time and size, the default, miss an edit of the same length within the same second.
- `image.json`: written last, so a folder without it is no image.

Author, dates and messages are fixed: the same sdist and tasks give the same commits, hence the same digest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file, write_json
from lightning_smith.core.git import git
from lightning_smith.repositories.local import repository_digest
from lightning_smith.repositories.revisions import MAIN, REMOVE_TESTS_MESSAGE, TEST_COMMAND
from lightning_smith.repositories.tree_files import TreeFile, read_sdist, write_tree

BUG_MESSAGE = "Bug Patch"


_IDENTITY = b"lightning-smith <lightning-smith@example.invalid>"
_EPOCH_S = 1_700_000_000
_COMPILE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class TaskBranch:
    """What one task's branch changes on top of `main`."""

    name: str
    """The instance id."""
    changed: dict[str, bytes]
    """New content of the files that the bug patch edits, by path."""
    removed: tuple[str, ...]
    """Files that hold FAIL_TO_PASS tests."""


@dataclass(frozen=True)
class ImageRecipe:
    """What a local image is made of."""

    image_name: str
    package: str
    version: str
    sdist: Path
    sdist_sha256: str
    pythonpath: str
    """Relative to the tree; `:` separates several."""
    branches: tuple[TaskBranch, ...]


def build_image(folder: Path, recipe: ImageRecipe, testbed_python: Path) -> None:
    """Build the image at `folder`, replacing what is there; a run that is killed leaves nothing that counts.

    Raise UserError for a wrong sdist, for a branch that edits or removes a file which the sdist lacks, and
    if the testbed's interpreter does not run.
    """
    files = read_sdist(recipe.sdist, recipe.sdist_sha256)
    for branch in recipe.branches:
        _check_branch(branch, files, recipe.sdist)
    staging = folder.parent / f".{folder.name}.building"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    repository = staging / "repository.git"
    _write_repository(repository, files, recipe.branches)
    write_tree(files, staging / "tree", _EPOCH_S)
    _compile_tree(staging, testbed_python)
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    write_json(
        folder / "image.json",
        {
            "image_name": recipe.image_name,
            "digest": repository_digest(folder / "repository.git"),
            "package": recipe.package,
            "version": recipe.version,
            "pythonpath": recipe.pythonpath,
            "test_command": list(TEST_COMMAND),
            "sdist": recipe.sdist.name,
            "sdist_sha256": sha256_file(recipe.sdist),
        },
    )


def _check_branch(branch: TaskBranch, files: dict[str, TreeFile], sdist: Path) -> None:
    for name in (*branch.changed, *branch.removed):
        if name not in files:
            raise UserError(
                f"{sdist} lacks {name}, which the task {branch.name} changes: the two do not match"
            )
    for name, data in branch.changed.items():
        if files[name].data == data:
            raise UserError(f"task {branch.name} leaves {name} as it is: its bug is none")
    if both := sorted(set(branch.changed) & set(branch.removed)):
        raise UserError(f"task {branch.name} edits {both[0]}, which holds one of its FAIL_TO_PASS tests")


def _write_repository(repository: Path, files: dict[str, TreeFile], branches: Sequence[TaskBranch]) -> None:
    git(
        None,
        "init",
        "--quiet",
        "--bare",
        "--template=",
        f"--initial-branch={MAIN}",
        str(repository.absolute()),
    )
    lines = [b"feature done\n", *_commit(MAIN, "Initial commit", None)]
    for name, file in files.items():
        lines += _modify(name, file.mode, file.data)
    for branch in branches:
        lines += _commit(branch.name, BUG_MESSAGE, f"refs/heads/{MAIN}")
        for name, data in branch.changed.items():
            lines += _modify(name, files[name].mode, data)
        lines += _commit(branch.name, REMOVE_TESTS_MESSAGE, None)
        lines += [b"D %s\n" % _quote(name) for name in branch.removed]
    lines.append(b"done\n")
    git(repository, "fast-import", "--quiet", "--date-format=raw", stdin=b"".join(lines))
    git(repository, "pack-refs", "--all")


def _commit(branch: str, message: str, parent: str | None) -> list[bytes]:
    """Start of a commit for `git fast-import`; without `parent` it goes on from the branch's own tip."""
    lines = [b"commit refs/heads/%s\n" % branch.encode(), b"committer %s %d +0000\n" % (_IDENTITY, _EPOCH_S)]
    lines.append(b"data %d\n%s\n" % (len(message), message.encode()))
    if parent is not None:
        lines.append(b"from %s\n" % parent.encode())
    return lines


def _modify(name: str, mode: str, data: bytes) -> list[bytes]:
    return [b"M %s inline %s\n" % (mode.encode(), _quote(name)), b"data %d\n" % len(data), data, b"\n"]


def _quote(name: str) -> bytes:
    raw = os.fsencode(name)
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _compile_tree(staging: Path, testbed_python: Path) -> None:
    """Byte-compile `tree/` and move the byte code to `pyc/`. Files that are not valid Python have none."""
    tree, byte_code = staging / "tree", staging / "pyc"
    byte_code.mkdir()
    # Traces name the place where the tests will see the file, not the place where it was compiled.
    places = ["-s", str(tree), "-p", "/testbed"]
    command = [str(testbed_python), "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *places]
    try:
        done = subprocess.run(
            [*command, str(tree)],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise UserError(
            f"the testbed's Python {testbed_python} does not run ({error.strerror}): make its environment"
        ) from None
    # compileall ends with 1 if a file is not valid Python, as test data often is not.
    if done.returncode not in (0, 1):
        reason = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise UserError(f"the testbed's Python {testbed_python} cannot compile: {reason}")
    for folder in sorted(tree.rglob("__pycache__")):
        target = byte_code / folder.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        os.utime(folder.parent, (_EPOCH_S, _EPOCH_S))
