"""What a rollout changed, as a patch taken by the harness, and such a patch applied to another tree.

    before = scan(tree)
    ...                                          # the model's commands run
    taken = take_diff(tree, before, image, commit, scratch)
    applied = apply_diff(sandbox, other_tree, taken.data)

A diff is bytes from end to end: nothing decodes, strips or reformats it. While it is taken, git never reads
the tree, so neither the tree's attributes, filters and nested repositories nor anybody's configuration has a
say: the harness finds the changed files itself and puts their bytes into a git index and object store of its
own, outside the tree, with the image's repository as alternate.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.git import GitError, git
from lightning_smith.release.patches import split_diff
from lightning_smith.sandbox.bwrap import Bwrap

MAX_DIFF_BYTES = 10_000_000
"""Default bound of a diff and of what it is made from."""

_MAX_CHANGED_FILES = 20_000
_CONTENT_FACTOR = 2
APPLY_TIMEOUT_S = 60.0

_BYTE_CODE_SUFFIXES = (".pyc", ".pyo")
_BINARY_STUB = re.compile(rb"^Binary files .* differ$", re.M)

NO_CONVERSION = "* -text -filter -ident -working-tree-encoding !eol !diff !whitespace\n"
"""The attributes that win over all others: bytes are never converted, text and binary are told apart by content."""

EMPTY_GIT_FOLDER = {
    "HEAD": "ref: refs/heads/none\n",
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
    "info/attributes": NO_CONVERSION,
    "objects/info/packs": "\n",
    "refs/README": "",
}
"""Files of a bare git directory without objects; the empty ones are there for their folders."""


class DiffRefusedError(UserError):
    """The rollout left a tree of which no patch is taken: the policy's doing, not the machine's."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells whether a file was touched: a program cannot set `ctime_ns`."""

    mode: int
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int


SUBMODULE = "160000"
"""Mode of a commit's entry for a submodule, of which it has nothing but the hash of a commit."""


class Entry(NamedTuple):
    """What stands at a path: mode as git has it, and the hash of the content."""

    mode: str
    blob: str


@dataclass(frozen=True)
class TakenDiff:
    """A patch and what was left out of it."""

    data: bytes
    left_out: Counter[str] = field(default_factory=Counter)
    """Changed entries by reason: byte code, git folder, link out of the tree, special file, bad path, submodule."""
    in_submodules: tuple[str, ...] = ()
    """Changed entries below submodules, or in the place of one."""


@dataclass(frozen=True)
class Applied:
    """Whether a patch applied, what git and patch said, and the files of it that were left out."""

    ok: bool
    output: bytes
    dropped: list[str] = field(default_factory=list)
    empty: bool = False
    """Whether nothing was left to apply."""


def scan(tree: Path) -> dict[str, Stamp]:
    """Stamp of every entry below `tree` that is no folder, by its path (undecodable bytes as surrogates).

    Folders that cannot be read are made readable; links are not followed.
    """
    return dict(_entries(tree))


def changed_paths(before: Mapping[str, Stamp], now: Mapping[str, Stamp]) -> set[str]:
    """Return paths of new, changed and deleted files."""
    return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def _entries(tree: Path) -> Iterator[tuple[str, Stamp]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            found = list(os.scandir(_readable(tree / folder)))
        except OSError:  # a path beyond the kernel's limit
            continue
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            else:
                yield path, _stamp(entry.stat(follow_symlinks=False))


def _stamp(about: os.stat_result) -> Stamp:
    return Stamp(about.st_mode, about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)


def _readable(folder: Path) -> Path:
    if not os.access(folder, os.R_OK | os.X_OK):
        folder.chmod(0o755)
    return folder


class ChangedFiles(Protocol):
    """What commands changed in a tree, wherever that is."""

    stamps: dict[str, Stamp | None]
    """New and changed files by path; None for those that are gone."""

    def existed(self, path: str) -> bool:
        """Return whether the file was there before the commands."""
        ...

    def target(self, path: str) -> str:
        """Return what a link points to."""
        ...

    def contents(self, paths: list[str]) -> Iterable[bytes]:
        """Contents of regular files and targets of links, in the order of `paths`."""
        ...


class LocalChanges:
    """ChangedFiles of a tree on this machine since it was scanned."""

    def __init__(self, tree: Path, before: dict[str, Stamp]) -> None:
        self._tree, self._before = tree, before
        now = scan(tree)
        self.stamps: dict[str, Stamp | None] = {
            path: stamp for path, stamp in now.items() if before.get(path) != stamp
        }
        self.stamps.update(dict.fromkeys(before.keys() - now.keys()))

    def existed(self, path: str) -> bool:
        return path in self._before

    def target(self, path: str) -> str:
        return str((self._tree / path).readlink())

    def contents(self, paths: list[str]) -> Iterable[bytes]:
        for path in paths:
            stamp = self.stamps[path]
            assert stamp is not None
            yield _content(self._tree / path, stamp)


def take_diff(
    tree: Path,
    before: dict[str, Stamp],
    repository: Path,
    commit: str,
    scratch: Path,
    *,
    max_bytes: int = MAX_DIFF_BYTES,
) -> TakenDiff:
    """`write_diff` of a `tree` on this machine, a checkout of `commit` when `before` was scanned."""
    return write_diff(LocalChanges(tree, before), repository, commit, scratch, max_bytes=max_bytes)


def write_diff(
    changed: ChangedFiles,
    repository: Path,
    commit: str,
    scratch: Path,
    *,
    max_bytes: int = MAX_DIFF_BYTES,
    found: Mapping[str, Entry | None] | None = None,
) -> TakenDiff:
    """Patch from `commit` of a bare `repository` to a tree that was a checkout of it before it changed.

    It is that of `git diff --binary --full-index` without renames: new, changed and deleted files, modes,
    links within the tree. Its text is UTF-8: files in another encoding are in it as binary. `scratch` is an
    absent or empty folder outside the tree. Changes in submodules are left out: the commit has only their hashes.

    `found` is for a tree that was checked out by others. It says what stood there in the place of the commit's
    entries before the change, None for nothing: the patch is taken against that, byte for byte, since the tree that
    it is applied to has it too. Changes of files that the commit lacks, such as what a build made, are left out then.

    Raise DiffRefusedError if the changes are too many or too large, naming the largest.
    """
    changes, left_out = _changes(changed)
    in_submodules: list[str] = []
    if changes:
        tracked = tracked_entries(repository, commit)
        links = {path for path, entry in tracked.items() if entry.mode == SUBMODULE}
        for path in list(changes):
            if links and any(part in links for part in _with_folders(path)):
                reason = "submodule"
                in_submodules.append(path)
            elif found is not None and path not in tracked and changed.existed(path):
                reason = "not in git"
            else:
                continue
            del changes[path]
            left_out[reason] += 1
    in_submodules.sort()
    if not changes:
        return TakenDiff(b"", left_out, tuple(in_submodules))
    sizes = {path: stamp.size for path, stamp in changes.items() if stamp is not None}
    if len(changes) > _MAX_CHANGED_FILES:
        raise DiffRefusedError(f"{len(changes)} files changed, more than the {_MAX_CHANGED_FILES} of a patch")
    if sum(sizes.values()) > _CONTENT_FACTOR * max_bytes:
        raise DiffRefusedError(_too_large(sizes, max_bytes))
    private = make_git_folder(scratch / "git", alternate=repository)
    try:
        base = _write_index(private, scratch / "blobs", changed, changes, commit, found or {})
        data = _render(private, base)
        if foreign := [part.names[-1] for part in split_diff(data) if not _is_utf8(part.data)]:
            (private / "info/attributes").write_text(NO_CONVERSION + "".join(map(_binary_attribute, foreign)))
            data = _render(private, base)
    except GitError as error:
        raise DiffRefusedError(f"the changes cannot be written as a patch ({error})") from None
    if len(data) > max_bytes:
        raise DiffRefusedError(_too_large(sizes, max_bytes))
    return TakenDiff(data, left_out, tuple(in_submodules))


def tracked_entries(repository: Path, commit: str) -> dict[str, Entry]:
    """Return every entry of a commit by its path, submodules included."""
    entries = {}
    for line in git(repository, "ls-tree", "-r", "-z", commit).split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _, blob = about.decode().split(" ")
        entries[os.fsdecode(path)] = Entry(mode, blob)
    return entries


def _with_folders(path: str) -> Iterator[str]:
    """Yield a path and those of the folders above it."""
    while path:
        yield path
        path = posixpath.dirname(path)


def _changes(changed: ChangedFiles) -> tuple[dict[str, Stamp | None], Counter[str]]:
    """New and changed files with their stamps, deleted ones with None, and the number of others by reason."""
    changes: dict[str, Stamp | None] = {}
    left_out: Counter[str] = Counter()
    for path, stamp in changed.stamps.items():
        if stamp is None:
            if not is_byte_code(path):
                changes[path] = None
        elif reason := _unwanted(changed, path, stamp):
            left_out[reason] += 1
            if changed.existed(path) and not is_byte_code(path):
                changes[path] = None
        else:
            changes[path] = stamp
    return changes, left_out


def _unwanted(changed: ChangedFiles, path: str, stamp: Stamp) -> str | None:
    """Return why a changed entry does not belong into a patch, or None."""
    if is_byte_code(path):
        return "byte code"
    if any(part.lower() in (".git", "git~1") for part in path.split("/")):
        return "git folder"
    if "\n" in path or "\r" in path:
        return "bad path"
    if stat.S_ISLNK(stamp.mode):
        return "link out of the tree" if _leads_out(path, changed.target(path)) else None
    return None if stat.S_ISREG(stamp.mode) else "special file"


def is_byte_code(path: str) -> bool:
    """Return whether a path names Python byte code, which a patch never holds."""
    return path.endswith(_BYTE_CODE_SUFFIXES) or "__pycache__" in path.split("/")


def _leads_out(path: str, target: str) -> bool:
    """Return whether a link at `path`, relative to the tree, points to a place outside of it."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return target.startswith("/") or inside.split("/")[0] == ".."


def _too_large(sizes: dict[str, int], max_bytes: int) -> str:
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    names = ", ".join(f"{path!r} ({size:,} bytes)" for path, size in largest)
    return f"the changes make a patch of more than {max_bytes:,} bytes; the largest changed files are {names}"


def make_git_folder(folder: Path, alternate: Path | None = None) -> Path:
    """Make an empty bare git directory, with `alternate`'s objects, that ignores attributes of trees."""
    for name, content in EMPTY_GIT_FOLDER.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    if alternate is not None:
        objects = os.fsencode(alternate.absolute() / "objects")
        (folder / "objects/info/alternates").write_bytes(objects + b"\n")
    return folder


def _write_index(
    private: Path,
    blobs: Path,
    changed: ChangedFiles,
    changes: dict[str, Stamp | None],
    commit: str,
    found: Mapping[str, Entry | None],
) -> str:
    """Fill the private index with `commit` and the changes, whose contents are copied to `blobs` first.

    Returns the tree that the patch is taken against: the commit, but where `found` says otherwise of a changed file.
    """
    kept = [(path, stamp) for path, stamp in changes.items() if stamp is not None]
    hashes = store_blobs(private, blobs, changed.contents([path for path, _ in kept]))
    base = commit
    git(private, "read-tree", commit)
    # A folder may stand in the place of a file that the commit has.
    if others := {part: found[part] for path in changes for part in _with_folders(path) if part in found}:
        _update_index(private, others)
        base = git(private, "write-tree").decode().strip()
    entries: dict[str, Entry | None] = {path: None for path, stamp in changes.items() if stamp is None}
    for (path, stamp), blob in zip(kept, hashes, strict=True):
        entries[path] = Entry(git_mode(stamp.mode), blob)
    _update_index(private, entries)
    return base


def store_blobs(repository: Path, folder: Path, contents: Iterable[bytes]) -> list[str]:
    """Store contents in a repository and return their hashes; `folder`, which is made, gets a copy of each."""
    folder.mkdir(parents=True)
    listed = []
    for number, content in enumerate(contents):
        (folder / str(number)).write_bytes(content)
        listed.append(f"{folder / str(number)}\n")
    store = ("hash-object", "-w", "--no-filters", "--stdin-paths")
    return git(repository, *store, stdin=os.fsencode("".join(listed))).decode().split()


def _update_index(private: Path, entries: Mapping[str, Entry | None]) -> None:
    """Put entries into the index, and take those out that are None."""
    # Deletions come first: a file may have become a folder, or a folder a file.
    lines = [f"0 {'0' * 40}\t{path}\0" for path, entry in entries.items() if entry is None]
    lines += [f"{entry.mode} {entry.blob}\t{path}\0" for path, entry in entries.items() if entry is not None]
    git(
        private,
        *("-c", "core.protectNTFS=false", "update-index", "-z", "--index-info"),
        stdin=os.fsencode("".join(lines)),
    )


def _content(path: Path, stamp: Stamp) -> bytes:
    """Bytes of a file, or the target of a link."""
    if stat.S_ISLNK(stamp.mode):
        return os.fsencode(path.readlink())
    if not stamp.mode & stat.S_IRUSR:
        path.chmod(0o600 | stamp.mode & 0o777)
    return path.read_bytes()


def git_mode(mode: int) -> str:
    """Return how git writes the mode of a file or a link."""
    if stat.S_ISLNK(mode):
        return "120000"
    return "100755" if mode & stat.S_IXUSR else "100644"


def _render(private: Path, commit: str) -> bytes:
    options = ["--cached", "--patch", "--binary", "--full-index", "--no-renames", "--unified=3"]
    options += ["--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"]
    return git(private, "-c", "core.quotePath=true", "diff-index", *options, commit)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _binary_attribute(path: str) -> str:
    """Return a line of git attributes that makes one path binary."""
    pattern = re.sub(r"([\\\[*?])", r"\\\1", path)
    plain = frozenset(range(32, 127)) - frozenset(b'"\\')
    escaped = (chr(byte) if byte in plain else f"\\{byte:03o}" for byte in os.fsencode(pattern))
    return f'"/{"".join(escaped)}" -diff\n'


def choose_parts(diff: bytes, skip: Callable[[str], bool]) -> tuple[bytes, list[str]]:
    """Return what of a patch is applied, and the files of the parts that are not: see `apply_diff`."""
    wanted, dropped = [], []
    for part in split_diff(diff):
        stub = _BINARY_STUB.search(part.data) is not None and b"\nGIT binary patch" not in part.data
        if any(map(skip, part.names)) or (stub and part.names):
            dropped.append(part.names[-1])
        else:
            wanted.append(part.data)
    return b"".join(wanted), dropped


def apply_script(git_folder: str, patch: str) -> str:
    """Applies a patch to the current folder; `git_folder` is one of `make_git_folder`.

    Git is told both: in a repository above the folder it would skip every file, and call that success.
    """
    return f"""
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 LC_ALL=C.UTF-8
git --git-dir={git_folder} --work-tree=. apply --verbose --whitespace=nowarn {patch} && exit 0
command -v patch >/dev/null || exit 1
echo 'trying patch --fuzz=5'
exec patch --batch --forward --fuzz=5 --no-backup-if-mismatch --reject-file=- -p1 -i {patch}
"""


def apply_diff(
    sandbox: Bwrap,
    tree: Path,
    diff: bytes,
    scratch: Path,
    *,
    skip: Callable[[str], bool] = lambda path: False,
) -> Applied:
    """Apply a patch to `tree` with `git apply`, or else, as official harnesses do, with `patch --fuzz=5`.

    Both run in the sandbox, which can write to the tree only. Parts whose path makes `skip` true, and binary
    files that a foreign patch only mentions, are left out and named. `scratch` is an absent or empty folder.
    If the result is not ok, the tree may hold a part of the patch. Raise SandboxError.
    """
    wanted, dropped = choose_parts(diff, skip)
    if not wanted:
        return Applied(True, b"", dropped, empty=True)
    done = sandbox.run(
        apply_script("/run/git", "/run/patch.diff"),
        tree=tree,
        environment={},
        timeout_s=APPLY_TIMEOUT_S,
        files={"/run/patch.diff": wanted},
        folders={"/run/git": make_git_folder(scratch)},
    )
    return Applied(done.returncode == 0, done.output, dropped)
