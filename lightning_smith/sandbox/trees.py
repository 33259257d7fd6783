"""Where a task's tests run: a tree that the policy never touched, on this machine or in a container.

What is believed of a run is decided in `grading/verdict.py`, the same way for each kind of tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from lightning_smith.repositories.local import LocalImage
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.repositories.tree_files import TreeFile, write_file
from lightning_smith.sandbox.bwrap import Bwrap, Completed
from lightning_smith.sandbox.diff import Applied, Stamp, apply_diff, scan
from lightning_smith.sandbox.scratch import Scratch, remove_tree
from lightning_smith.sandbox.workspace import python_environment


class TestTree(Protocol):
    """A tree at one commit of an image. Paths are relative to it. Its SandboxErrors are the machine's."""

    __test__ = False  # pytest would take this for a class of tests

    import_roots: list[str]
    """Folders from which its modules are imported, "." for the tree itself."""

    def stamps(self) -> dict[str, Stamp]:
        """Stamp of every file as it is now, links not followed."""
        ...

    def write(self, path: str, file: TreeFile) -> None:
        """Write a file over whatever is there; folders above it become real ones, so that no link is followed."""
        ...

    def remove(self, path: str) -> None:
        """Remove what is there, if anything, without following a link."""
        ...

    def apply(self, diff: bytes, skip: Callable[[str], bool]) -> Applied:
        """`diff.apply_diff` on it."""
        ...

    def run(
        self,
        command: str,
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        cpu_s: float,
        keep_bytes: int,
    ) -> Completed:
        """Run a script in it, with the image's own variables and `environment` added.

        What it changes may be lost once `apply` was called: then the tree is what is to be tested.
        """
        ...


class LocalTestTree:
    """TestTree in a folder of this machine, whose commands run in bubblewrap.

    Once `apply` was called each of them has a copy of the tree, on a file system of its own (`Bwrap.run`).
    """

    __test__ = False

    def __init__(self, sandbox: Bwrap, image: LocalImage, revision: str, folder: Path) -> None:
        self._sandbox, self._image, self._folder = sandbox, image, folder
        self._tree = folder / "tree"
        self._is_to_be_tested = False
        self.import_roots = [".", *image.pythonpath.split(":")]
        image.checkout(revision, self._tree)

    def stamps(self) -> dict[str, Stamp]:
        return scan(self._tree)

    def write(self, path: str, file: TreeFile) -> None:
        self._make_real_parents(path)
        self.remove(path)
        write_file(self._tree / path, file)

    def remove(self, path: str) -> None:
        self._make_real_parents(path)
        target = self._tree / path
        if target.is_dir() and not target.is_symlink():
            remove_tree(target)
        else:
            target.unlink(missing_ok=True)

    def apply(self, diff: bytes, skip: Callable[[str], bool]) -> Applied:
        self._is_to_be_tested = True
        return apply_diff(self._sandbox, self._tree, diff, self._folder / "git", skip=skip)

    def run(
        self,
        command: str,
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        cpu_s: float,
        keep_bytes: int,
    ) -> Completed:
        return self._sandbox.run(
            command,
            tree=self._tree,
            environment={**python_environment(self._image), **environment},
            timeout_s=timeout_s,
            copy=self._is_to_be_tested,
            cpu_s=cpu_s,
            keep_bytes=keep_bytes,
        )

    def _make_real_parents(self, path: str) -> None:
        folder = self._tree
        for part in Path(path).parent.parts:
            folder = folder / part
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                folder.unlink()
            folder.mkdir(exist_ok=True)


class ContainerSandbox(Protocol):
    """A sandbox that has its trees elsewhere than on this machine."""

    def test_tree(self, image: Any, revision: str) -> AbstractContextManager[TestTree]:
        """A tree of its own at a revision of an image of the sandbox's kind, gone at the end."""
        ...


Sandbox = Bwrap | ContainerSandbox


@contextmanager
def open_test_tree(
    sandbox: Sandbox, image: Revisions, revision: str, scratch: Path | None
) -> Iterator[TestTree]:
    """A tree of its own, gone at the end; `scratch` is where a local one goes if /dev/shm is full."""
    if not isinstance(sandbox, Bwrap):
        with sandbox.test_tree(image, revision) as tree:
            yield tree
        return
    with Scratch(scratch) as folder:
        yield LocalTestTree(sandbox, cast(LocalImage, image), revision, folder)
