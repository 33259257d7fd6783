"""What of a patch the grader does not take: whatever could steer the test run instead of the code under test.

The grader starts from the image's tree. There the task's tests, the configuration of pytest and what Python
imports by itself are the image's own, before the tests run as after the patch was applied.
"""

from __future__ import annotations

import posixpath
import stat
import sys
from collections.abc import Collection

from lightning_smith.repositories.revisions import Revisions
from lightning_smith.repositories.tree_files import EXECUTABLE, REGULAR, TreeFile
from lightning_smith.sandbox.diff import Stamp, is_byte_code
from lightning_smith.sandbox.trees import TestTree

CONFIGURATION = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
    }
)
_METADATA_SUFFIXES = (".pth", ".egg-info", ".dist-info", ".egg-link")
_TEST_FOLDER_NAMES = frozenset({"test", "tests"})
_PYTEST_MODULES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"})
_SHADOWED = _PYTEST_MODULES | sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
"""Modules that a file at a root of imports would be taken for, before pytest has even started."""


class Protection:
    """Which paths of a tree a patch must not change, for one task.

    - byte code, pytest's configuration, `*.pth` and package metadata, wherever they are;
    - the files of the task's tests, and everything in the folder `test` or `tests` that they are in, but for files
      that the task's bug touches: a source file may hold a doctest;
    - files at a root of imports that would be imported instead of the standard library or pytest, unless the
      image has such a file itself. A test file's folder that is no package is such a root: pytest makes it one.
    """

    def __init__(
        self,
        test_files: Collection[str],
        import_roots: Collection[str],
        pristine: Collection[str],
        touched: Collection[str] = (),
    ) -> None:
        self._test_files, self._touched = frozenset(test_files), frozenset(touched)
        self._test_folders = test_folders(test_files)
        folders = {posixpath.dirname(path) for path in test_files}
        roots = {*import_roots, *(folder for folder in folders if f"{folder}/__init__.py" not in pristine)}
        self._roots = [root.strip("./") for root in roots]
        self._shadowed = _SHADOWED.difference(*map(self._top_modules, pristine))

    def __call__(self, path: str) -> bool:
        return self.steers(path) or not self._shadowed.isdisjoint(self._top_modules(path))

    def steers(self, path: str) -> bool:
        """Return whether a path is protected whatever else the tree holds: a test, its configuration, byte code."""
        return _steers_tests(path) or (
            path not in self._touched and (path in self._test_files or path.startswith(self._test_folders))
        )

    def _top_modules(self, path: str) -> set[str]:
        """Return names under which Python would import a path, or the folder it is in, from the roots of imports."""
        names = set()
        for root in self._roots:
            if root and not path.startswith(f"{root}/"):
                continue
            top, slash, _ = path.removeprefix(f"{root}/" if root else "").partition("/")
            if slash or top.endswith((".py", ".so")):
                names.add(top.split(".")[0])
        return names


def unrepairable(touched: Collection[str], test_files: Collection[str]) -> list[str]:
    """Of the files that a task's bug touches those that no patch may repair, since the tests that decide are in them or
    below the same folder `test` or `tests`: whoever changes such a file changes what grades the patch.

    All of them, if the bug touches nothing but configuration of tests and packages, of which no patch changes anything.
    """
    folders = test_folders(test_files)
    graded = sorted(path for path in touched if path in test_files or path.startswith(folders))
    return graded or (sorted(touched) if all(map(_steers_tests, touched)) else [])


def _steers_tests(path: str) -> bool:
    """Return whether a path is byte code, pytest's configuration or a package's metadata, whatever task it is about."""
    parts = path.split("/")
    return (
        is_byte_code(path)
        or parts[-1] in CONFIGURATION
        or any(part.endswith(_METADATA_SUFFIXES) for part in parts)
    )


def test_folders(test_files: Collection[str]) -> tuple[str, ...]:
    """The outermost folder called test or tests of each file that is in one, with a slash at its end."""
    found: set[str] = set()
    for path in test_files:
        parts = path.split("/")[:-1]
        first = next(
            (number for number, part in enumerate(parts, start=1) if part in _TEST_FOLDER_NAMES), None
        )
        if first is not None:
            found.add("/".join(parts[:first]) + "/")
    return tuple(found)


def restore(
    tree: TestTree,
    changed: Collection[str],
    before: dict[str, Stamp],
    image: Revisions,
    revision: str,
    protection: Protection,
) -> list[str]:
    """Give protected paths that `changed` since `before` their content at `revision` back; returns their names.

    The parts of a patch that name protected paths are left out beforehand, so this finds something only if a
    patch reached one in a roundabout way, such as a folder replaced by a link.
    """
    touched = sorted(path for path in changed if protection(path))
    for path in touched:
        # Byte code comes from the image's build, not from its commits. Without it Python compiles the source.
        if path in before and stat.S_ISREG(before[path].mode) and not is_byte_code(path):
            mode = EXECUTABLE if before[path].mode & stat.S_IXUSR else REGULAR
            tree.write(path, TreeFile(mode, image.file_at(revision, path)))
        else:
            tree.remove(path)
    return touched
