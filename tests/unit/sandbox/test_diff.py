"""Patches are bytes: taken the same way whatever git is configured to do, and applied within the tree only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_smith.core.git import git
from lightning_smith.release.patches import split_diff
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.diff import (
    DiffRefusedError,
    LocalChanges,
    apply_diff,
    scan,
    take_diff,
    write_diff,
)

FILES: dict[str, bytes] = {
    "pkg/core.py": b"def f():\n    return 1\n",
    "pkg/na\u00efve mod.py": b"Z = 3\n",
    "pkg/crlf.py": b"X = 1\r\nY = 2\r\n",
    "pkg/latin.py": b"# -*- coding: latin-1 -*-\nNAME = '\xe9'\n",
    "pkg/run.sh": b"#!/bin/sh\nexit 0\n",
    "pkg/old.py": b"".join(b"line %d\n" % number for number in range(20)),
    "pkg/[odd] *?.py": b"A = '\xe9'\n",
    "docs": b"a file that becomes a folder\n",
    "tests/test_core.py": b"def test():\n    pass\n",
    ".gitattributes": b"*.py diff=shout filter=upper text eol=crlf\n*.txt -text\n",
    ".gitignore": b"*.log\nbuild/\n",
}

MERGE = b"""def merge(a, b):
    if not a:
        return b
    else:
        # replace
        check(a, b)
        result = a | b
        return result


def check(a, b):
    assert isinstance(a, dict) and isinstance(b, dict)
"""


class Repository:
    """A bare repository of FILES and checkouts of it."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.path, self._files, self._folder = folder / "repository.git", files, folder
        git(None, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self.path))
        lines = [b"feature done\ncommit refs/heads/main\ncommitter a <a@b> 1 +0000\ndata 1\nx\n"]
        for name, data in files.items():
            quoted = name.replace("\\", "\\\\").replace('"', '\\"').encode()
            lines.append(b'M 100644 inline "%s"\ndata %d\n%s\n' % (quoted, len(data), data))
        git(self.path, "fast-import", "--quiet", stdin=b"".join([*lines, b"done\n"]))
        self.commit = git(self.path, "rev-parse", "main").decode().strip()

    def checkout(self, name: str) -> Path:
        tree = self._folder / name
        for path, data in self._files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(data)
        return tree


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path, FILES)


@pytest.fixture(scope="module")
def sandbox() -> Bwrap:
    return Bwrap.find()


def edit(tree: Path) -> None:
    """Every kind of change."""
    (tree / "pkg/core.py").write_bytes(b"def f():\n    return 2\n")
    (tree / "pkg/na\u00efve mod.py").write_bytes(b"Z = 4\n")
    (tree / "pkg/new.py").write_bytes(b"new = True\n")
    (tree / "pkg/empty.py").write_bytes(b"")
    (tree / "pkg/ignored.log").write_bytes(b"log\n")
    (tree / "pkg/crlf.py").write_bytes(b"X = 1\r\nY = 3\r\n")
    (tree / "pkg/latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nNAME = '\xe8'\n")
    (tree / "pkg/[odd] *?.py").write_bytes(b"A = '\xe8'\n")
    (tree / ".coverage").write_bytes(bytes(64))
    (tree / "pkg/run.sh").chmod(0o755)
    (tree / "pkg/old.py").rename(tree / "pkg/new_name.py")
    (tree / "pkg/new_name.py").write_bytes(FILES["pkg/old.py"].replace(b"line 7", b"line seven"))
    (tree / "docs").unlink()
    (tree / "docs").mkdir()
    (tree / "docs/index.txt").write_bytes(b"no newline at the end")
    (tree / "pkg/link.py").symlink_to("core.py")


def contents(tree: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes of everything in a tree."""
    found = {}
    for path in sorted(tree.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(tree))] = (0, os.fsencode(path.readlink()))
        elif path.is_file():
            found[str(path.relative_to(tree))] = (path.stat().st_mode & 0o100, path.read_bytes())
    return found


def diff_of(repository: Repository, tree: Path, tmp_path: Path, name: str = "scratch") -> bytes:
    before = scan(tree)
    edit(tree)
    return take_diff(tree, before, repository.path, repository.commit, tmp_path / name).data


def test_round_trip(repository: Repository, sandbox: Bwrap, tmp_path: Path) -> None:
    tree = repository.checkout("tree")
    diff = diff_of(repository, tree, tmp_path)
    other = repository.checkout("other")
    applied = apply_diff(sandbox, other, diff, tmp_path / "git")
    assert applied.ok, applied.output
    assert contents(other) == contents(tree)
    diff.decode("utf-8")  # text in another encoding is in it as binary


def test_what_lies_in_a_submodule_is_named_and_leaves_it_in_its_place(
    repository: Repository, sandbox: Bwrap, tmp_path: Path
) -> None:
    """A new file below it would take the place of the commit's entry, and the patch would remove the submodule."""
    link = f"160000 {'1' * 40}\tlibs/sub\n"
    index = {"GIT_INDEX_FILE": str(tmp_path / "index")}
    git(repository.path, "read-tree", repository.commit, environment=index)
    git(repository.path, "update-index", "--index-info", stdin=link.encode(), environment=index)
    with_link = git(repository.path, "write-tree", environment=index).decode().strip()
    tree = repository.checkout("tree")
    (tree / "libs/sub").mkdir(parents=True)
    (tree / "libs/sub/old.c").write_text("int x;\n")
    before = scan(tree)
    (tree / "libs/sub/old.c").write_text("int y;\n")
    (tree / "libs/sub/deep").mkdir()
    (tree / "libs/sub/deep/new.c").write_text("int z;\n")
    (tree / "libs/subway.c").write_text("int w;\n")
    taken = take_diff(tree, before, repository.path, with_link, tmp_path / "scratch")
    assert taken.in_submodules == ("libs/sub/deep/new.c", "libs/sub/old.c")
    assert taken.left_out == {"submodule": 2}
    assert [part.names for part in split_diff(taken.data)] == [("libs/subway.c",)]
    other = repository.checkout("other")
    assert apply_diff(sandbox, other, taken.data, tmp_path / "git").ok
    # The submodule's folder replaced by a file is no change of the repository's either.
    shutil.rmtree(tree / "libs/sub")
    (tree / "libs/sub").write_text("no folder\n")
    taken = take_diff(tree, before, repository.path, with_link, tmp_path / "again")
    assert b"160000" not in taken.data and "libs/sub" in taken.in_submodules


def test_a_folder_that_was_found_in_the_place_of_a_file(
    repository: Repository, sandbox: Bwrap, tmp_path: Path
) -> None:
    """As in an image whose maker replaced the file without a commit."""

    def found(name: str) -> Path:
        tree = repository.checkout(name)
        (tree / "docs").unlink()
        (tree / "docs").mkdir()
        (tree / "docs/old.md").write_text("not in git\n")
        return tree

    tree = found("tree")
    before = scan(tree)
    (tree / "docs/new.md").write_text("the fix\n")
    changes = LocalChanges(tree, before)
    taken = write_diff(
        changes, repository.path, repository.commit, tmp_path / "scratch", found={"docs": None}
    )
    assert [part.names for part in split_diff(taken.data)] == [("docs/new.md",)]
    other = found("other")
    assert apply_diff(sandbox, other, taken.data, tmp_path / "git").ok and contents(other) == contents(tree)


def test_user_configuration_has_no_say(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = diff_of(repository, repository.checkout("one"), tmp_path, "first")
    ran = tmp_path / "ran"
    config = tmp_path / "gitconfig"
    config.write_text(
        "[diff]\n\tnoprefix = true\n\tmnemonicPrefix = true\n\texternal = /bin/true\n\trenames = copies\n"
        "[color]\n\tui = always\n\tdiff = always\n[core]\n\tquotePath = false\n\tautocrlf = true\n"
        f"\texcludesFile = {tmp_path}/ignore\n\thooksPath = {tmp_path}\n\tfsmonitor = touch {ran}\n"
        f'[filter "upper"]\n\tclean = touch {ran}; tr a-z A-Z\n[diff "shout"]\n\ttextconv = touch {ran}; cat\n'
    )
    (tmp_path / "ignore").write_text("*.py\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/true")
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=0")
    tree = repository.checkout("two")
    nested = tree / "pkg/.git"
    nested.mkdir()
    (nested / "config").write_text(f"[core]\n\tfsmonitor = touch {ran}\n")
    before = scan(tree)
    edit(tree)
    (nested / "HEAD").write_text("ref: refs/heads/main\n")
    taken = take_diff(tree, before, repository.path, repository.commit, tmp_path / "second")
    assert taken.data == plain and plain.startswith(b"diff --git a/")
    assert not ran.exists()
    assert taken.left_out == {"git folder": 1}


def test_blank_context_lines_at_the_end_stay(sandbox: Bwrap, tmp_path: Path) -> None:
    repository = Repository(tmp_path, {"merge.py": MERGE})
    tree = repository.checkout("tree")
    before = scan(tree)
    (tree / "merge.py").write_bytes(MERGE.replace(b"a | b", b"a.copy()\n        result.update(b)"))
    diff = take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch").data
    assert diff.endswith(b"\n         return result\n \n \n")
    other = repository.checkout("other")
    assert apply_diff(sandbox, other, diff, tmp_path / "git").ok
    assert contents(other) == contents(tree)


def test_no_change_is_an_empty_patch(repository: Repository, tmp_path: Path) -> None:
    tree = repository.checkout("tree")
    before = scan(tree)
    (tree / "pkg/__pycache__").mkdir()
    (tree / "pkg/__pycache__/core.cpython-312.pyc").write_bytes(b"x")
    (tree / "pkg/core.pyc").write_bytes(b"x")
    taken = take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch")
    assert taken.data == b"" and taken.left_out == {"byte code": 2}


def test_what_leads_out_of_the_tree_is_left_out(repository: Repository, tmp_path: Path) -> None:
    tree = repository.checkout("tree")
    before = scan(tree)
    (tree / "pkg/core.py").unlink()
    (tree / "pkg/core.py").symlink_to("/etc/passwd")
    (tree / "up").symlink_to("pkg/../../secret")
    (tree / "inside").symlink_to("pkg/../docs")
    os.mkfifo(tree / "pipe")
    (tree / "two\nlines.py").write_text("x")
    taken = take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch")
    assert taken.left_out == {"link out of the tree": 2, "special file": 1, "bad path": 1}
    assert [part.names for part in split_diff(taken.data)] == [("inside",), ("pkg/core.py",)]
    assert b"deleted file mode" in taken.data and b"passwd" not in taken.data


def test_same_size_within_the_same_second(repository: Repository, tmp_path: Path) -> None:
    tree = repository.checkout("tree")
    path = tree / "pkg/core.py"
    about = path.stat()
    before = scan(tree)
    path.write_bytes(FILES["pkg/core.py"].replace(b"1", b"7"))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert (
        b"+    return 7"
        in take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch").data
    )


def test_permissions_taken_away(repository: Repository, tmp_path: Path) -> None:
    tree = repository.checkout("tree")
    before = scan(tree)
    (tree / "pkg/core.py").write_bytes(b"changed\n")
    (tree / "pkg/core.py").chmod(0)
    (tree / "pkg").chmod(0)
    diff = take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch").data
    assert b"+changed" in diff and diff.count(b"diff --git") == 1


def test_too_large_names_the_largest(repository: Repository, tmp_path: Path) -> None:
    tree = repository.checkout("tree")
    before = scan(tree)
    (tree / "package-lock.json").write_bytes(os.urandom(3000).hex().encode())
    with (tree / "sparse.bin").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DiffRefusedError, match=r"'sparse.bin' \(1,099,511,627,776 bytes\)"):
        take_diff(tree, before, repository.path, repository.commit, tmp_path / "one", max_bytes=1000)
    (tree / "sparse.bin").unlink()
    with pytest.raises(DiffRefusedError, match=r"'package-lock.json' \(6,000 bytes\)"):
        take_diff(tree, before, repository.path, repository.commit, tmp_path / "two", max_bytes=1000)


def test_parts_and_names() -> None:
    diff = (
        b"a note\ndiff --git a/x y.py b/x y.py\nindex 1..2 100644\n--- a/x y.py\t\n+++ b/x y.py\t\n@@ -1 +1 @@\n"
        b"--- not a header\n+++ nor this\n"
        b'diff --git "a/na\\303\\257ve \\"q\\".py" "b/na\\303\\257ve \\"q\\".py"\nold mode 100644\nnew mode 100755\n'
        b"diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n"
        b"diff --git a/.coverage b/.coverage\nnew file mode 100644\nBinary files /dev/null and b/.coverage differ\n"
    )
    names = [part.names for part in split_diff(diff)]
    assert names == [("x y.py",), ('na\u00efve "q".py',), ("old", "new"), (".coverage",)]
    assert b"".join(part.data for part in split_diff(diff)) == diff.removeprefix(b"a note\n")


def test_binary_stub_of_a_foreign_patch_is_left_out_and_named(sandbox: Bwrap, tmp_path: Path) -> None:
    repository = Repository(tmp_path, {"merge.py": MERGE})
    diff = (
        b"diff --git a/.coverage b/.coverage\nnew file mode 100644\nindex 0000000..1b2c3d4\n"
        b"Binary files /dev/null and b/.coverage differ\n"
        b"diff --git a/merge.py b/merge.py\n--- a/merge.py\n+++ b/merge.py\n@@ -7,1 +7,1 @@\n"
        b"-        result = a | b\n+        result = b | a\n"
    )
    tree = repository.checkout("tree")
    applied = apply_diff(sandbox, tree, diff, tmp_path / "git")
    assert applied.ok and applied.dropped == [".coverage"]
    assert b"b | a" in (tree / "merge.py").read_bytes()


def test_fuzz_is_the_fallback(sandbox: Bwrap, tmp_path: Path) -> None:
    repository = Repository(tmp_path, {"merge.py": MERGE})
    diff = (
        b"diff --git a/merge.py b/merge.py\n--- a/merge.py\n+++ b/merge.py\n@@ -4,4 +4,4 @@\n     else:\n"
        b"         # another comment\n         check(a, b)\n-        result = a | b\n+        result = b | a\n"
    )
    tree = repository.checkout("tree")
    applied = apply_diff(sandbox, tree, diff, tmp_path / "git")
    assert applied.ok and b"b | a" in (tree / "merge.py").read_bytes()
    assert not list(tree.glob("*.orig")) and not list(tree.glob("*.rej"))
    assert not apply_diff(sandbox, tree, diff, tmp_path / "git2").ok


ESCAPES = {
    "parent": b"diff --git a/../out b/../out\nnew file mode 100644\n--- /dev/null\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
    "plain parent": b"--- /dev/null\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
    "absolute": b"--- /dev/null\n+++ /tmp/out\n@@ -0,0 +1 @@\n+x\n",
    "through a link": (
        b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+..\n"
        b"\\ No newline at end of file\n"
        b"diff --git a/l/out b/l/out\nnew file mode 100644\n--- /dev/null\n+++ b/l/out\n@@ -0,0 +1 @@\n+x\n"
    ),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_is_written_outside(sandbox: Bwrap, tmp_path: Path, name: str) -> None:
    repository = Repository(tmp_path, {"merge.py": MERGE})
    tree = repository.checkout("tree")
    around = sorted(path.name for path in tmp_path.iterdir())
    apply_diff(sandbox, tree, ESCAPES[name], tmp_path / "git")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*around, "git"])


def test_skipped_parts(repository: Repository, sandbox: Bwrap, tmp_path: Path) -> None:
    diff = diff_of(repository, repository.checkout("tree"), tmp_path)
    other = repository.checkout("other")
    applied = apply_diff(sandbox, other, diff, tmp_path / "git", skip=lambda path: path.startswith("pkg/"))
    assert applied.ok and "pkg/core.py" in applied.dropped
    assert (other / "pkg/core.py").read_bytes() == FILES["pkg/core.py"]
    assert (other / "docs/index.txt").exists()


def test_the_patch_is_that_of_plain_git(tmp_path: Path) -> None:
    """What we write is what `git diff` itself writes, given a work tree without attributes."""
    repository = Repository(tmp_path, {name: data for name, data in FILES.items() if name[0] != "."})
    tree = repository.checkout("tree")
    before = scan(tree)
    (tree / "pkg/core.py").write_bytes(b"def f():\n    return 2\n")
    (tree / "pkg/run.sh").chmod(0o755)
    ours = take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch").data
    index = {"GIT_INDEX_FILE": str(tmp_path / "index")}
    git(repository.path, "read-tree", "main", environment=index)
    options = ["--binary", "--full-index", "--no-renames", "--", "pkg"]
    theirs = git(repository.path, "diff", *options, work_tree=tree, environment=index)
    assert hashlib.sha256(ours).digest() == hashlib.sha256(theirs).digest()


def test_git_is_not_asked_about_the_tree(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = repository.checkout("tree")
    before = scan(tree)
    edit(tree)
    commands: list[list[str]] = []
    run = subprocess.run

    def recorded(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    take_diff(tree, before, repository.path, repository.commit, tmp_path / "scratch")
    assert commands and not any(str(tree) in word for command in commands for word in command)
