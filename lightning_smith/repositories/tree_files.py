"""The files of a source distribution, read without unpacking it to the disk.

Byte code that was packed by accident (`__pycache__`) is left out: it belongs to another interpreter.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file

REGULAR = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"


@dataclass(frozen=True)
class TreeFile:
    """A file of a tree as git sees it."""

    mode: str
    """`REGULAR`, `EXECUTABLE` or `SYMLINK`."""
    data: bytes
    """Content; the target of a symbolic link."""


def read_sdist(path: Path, sha256: str | None = None) -> dict[str, TreeFile]:
    """Return every file of a .tar.gz or .zip sdist by its path below the sdist's one top folder, sorted.

    Paths that are not UTF-8 hold surrogate escapes. Raise UserError if the archive is absent or damaged, if
    its sha256 is another than `sha256`, or if it holds a path or link that leads out of it.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist: download the sdist first")
    if sha256 is not None and (found := sha256_file(path)) != sha256:
        raise UserError(f"{path} has sha256 {found} instead of {sha256}: delete it and download it again")
    read = _read_zip if path.suffix == ".zip" else _read_tar
    files: dict[str, TreeFile] = {}
    tops: set[str] = set()
    try:
        for name, file in read(path):
            top, _, inner = posixpath.normpath(name).partition("/")
            if "__pycache__" in inner.split("/"):
                continue
            _check_path(path, name, inner, file)
            tops.add(top)
            files[inner] = file
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise UserError(
            f"{path} is not a readable sdist ({error}): delete it and download it again"
        ) from None
    if len(tops) != 1:
        raise UserError(f"{path} holds {len(tops)} top folders instead of one: it is not an sdist")
    return dict(sorted(files.items()))


def write_tree(files: dict[str, TreeFile], folder: Path, mtime_s: int) -> None:
    """Write a tree below `folder` (created), every file and folder with the same modification time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        write_file(folder / name, file)
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            os.utime(Path(root, name), (mtime_s, mtime_s), follow_symlinks=False)
        os.utime(root, (mtime_s, mtime_s))


def write_file(path: Path, file: TreeFile) -> None:
    """Write one file with its mode, over what is there; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (file.mode == SYMLINK and path.exists()):
        path.unlink()
    if file.mode == SYMLINK:
        path.symlink_to(os.fsdecode(file.data))
    else:
        path.write_bytes(file.data)
        path.chmod(0o755 if file.mode == EXECUTABLE else 0o644)


def _read_tar(path: Path) -> Iterator[tuple[str, TreeFile]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isdir():
                continue
            if member.issym():
                yield member.name, TreeFile(SYMLINK, os.fsencode(member.linkname))
                continue
            content = archive.extractfile(member) if member.isfile() or member.islnk() else None
            if content is None:
                raise UserError(f"{path} holds {member.name!r}, which is neither file, folder nor link")
            yield member.name, TreeFile(EXECUTABLE if member.mode & 0o100 else REGULAR, content.read())


def _read_zip(path: Path) -> Iterator[tuple[str, TreeFile]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                yield member.filename, TreeFile(SYMLINK, archive.read(member))
            else:
                yield member.filename, TreeFile(EXECUTABLE if mode & 0o100 else REGULAR, archive.read(member))


def _check_path(archive: Path, name: str, inner: str, file: TreeFile) -> None:
    """Refuse what would be written outside the tree, and what git does not store."""
    parts = posixpath.normpath(name).split("/")
    if not inner:
        raise UserError(f"{archive} holds {name!r} beside its top folder: it is not an sdist")
    if name.startswith("/") or ".." in parts or any(part.lower() == ".git" for part in parts):
        raise UserError(f"{archive} holds the path {name!r}, which does not belong into a source tree")
    if file.mode == SYMLINK:
        target = os.fsdecode(file.data)
        landed = posixpath.normpath(posixpath.join(posixpath.dirname(inner), target))
        if target.startswith("/") or landed == ".." or landed.startswith("../"):
            raise UserError(
                f"{archive} holds the link {name!r} to {target!r}, which leads out of the source tree"
            )
