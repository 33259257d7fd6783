"""The repository inside a Docker image, read from the image's files: nothing of the image is run.

    DockerBranches(daemon).list_branches("swebench/swesmith.x86_64.pypi_1776_boltons.d39cfd15")
    image = DockerImages(daemon, folder)[image_name]

A container is created and never started, and the daemon hands out files of it. So neither a program of the image
nor a network has a part in it, and an image for another processor can be read as well.

SWE-smith's images hold /testbed, cloned with `git clone -o origin`: its tasks are remote branches, `main` is
checked out. The copy of the repository that an image leaves on this machine has them as branches of its own.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from docker.errors import NotFound

from lightning_smith.errors import UserError
from lightning_smith.files import read_json, write_atomic, write_json
from lightning_smith.images.branches import ImageBranches
from lightning_smith.images.build import MAIN, TEST_COMMAND
from lightning_smith.images.daemon import Daemon, FoundImage
from lightning_smith.images.git import git
from lightning_smith.images.names import image_key
from lightning_smith.images.revisions import Revisions
from lightning_smith.process import stage_lock

TREE = "/testbed"
"""Where an image has its task's repository."""

_GIT = f"{TREE}/.git"
_BRANCH = re.compile(r"refs/(?:heads|remotes/origin)/(.+)")
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_GO_FOLDER = 1 << 31
"""The bit of a folder in the modes that the daemon's API gives (Go's os.ModeDir)."""
_COPY_WAIT_S = 1800.0


class DockerBranches:
    """BranchLister of the images of a Docker daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def list_branches(self, image_name: str) -> ImageBranches:
        """UserError if there is no such image, or no repository at /testbed in it."""
        image = self._daemon.image(image_name)
        with tempfile.TemporaryDirectory() as scratch, _files(self._daemon, image) as files:
            folder = Path(scratch)
            files.check()
            for part in ("packed-refs", "refs", "HEAD"):
                files.copy(f"{_GIT}/{part}", folder)
            found = _heads(folder)
        return ImageBranches(image.name, image.digest, frozenset(found) - {MAIN})


@dataclass(frozen=True)
class DockerImage(Revisions):
    """An image of the daemon whose repository has been copied to this machine."""

    found: FoundImage
    folder: Path
    """Holds `repository.git`."""
    test_command: tuple[str, ...] = TEST_COMMAND

    @property
    def image_name(self) -> str:
        return self.found.name

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the image's configuration: the same for the same content, pulled or built."""
        return self.found.id

    @property
    def repository(self) -> Path:
        return self.folder / "repository.git"


class DockerImages:
    """`images[image_name]` finds an image, copies its repository once (below `folder`), and keeps it."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon, self.folder = daemon, folder
        self._opened: dict[str, DockerImage] = {}

    def __getitem__(self, image_name: str) -> DockerImage:
        """UserError if there is no such image, or no repository at /testbed in it."""
        if image_name not in self._opened:
            found = self.daemon.image(image_name)
            folder = self.folder / f"{image_key(found.name)}-{found.id.removeprefix('sha256:')[:16]}"
            if not (folder / "copied.json").is_file():
                with stage_lock(self.folder, f"copy of {folder.name}", wait_s=_COPY_WAIT_S):
                    if not (folder / "copied.json").is_file():
                        _copy_repository(self.daemon, found, folder)
            if read_json(folder / "copied.json") != {"image": found.id}:
                raise UserError(f"{folder} is not the copy of {found.name}: delete it and run the same again")
            self._opened[image_name] = DockerImage(found, folder)
        return self._opened[image_name]


def _copy_repository(daemon: Daemon, image: FoundImage, folder: Path) -> None:
    """Make `folder`: a bare repository with every branch of the image's, and nothing else of its settings."""
    shutil.rmtree(folder, ignore_errors=True)
    copied = folder / "copied"
    with _files(daemon, image) as files:
        files.check()
        files.copy(_GIT, copied)
    source, target = copied / ".git", folder / "repository.git"
    if (source / "objects/info/alternates").exists() or not (source / "objects").is_dir():
        raise UserError(f"the repository at {TREE} in {image.name} lacks its objects: build the image again")
    heads = _heads(source)
    git(None, "init", "--quiet", "--bare", "--template=", f"--initial-branch={MAIN}", str(target.absolute()))
    shutil.rmtree(target / "objects")
    (source / "objects").rename(target / "objects")
    heads[MAIN] = _resolve_head(source, heads, image)
    lines = (f"{commit} refs/heads/{name}\n" for name, commit in sorted(heads.items()))
    write_atomic(target / "packed-refs", "# pack-refs with: sorted \n" + "".join(lines))
    shutil.rmtree(copied)
    write_json(folder / "copied.json", {"image": image.id})


class _Files:
    """Files of an image, through a container that is never started."""

    def __init__(self, daemon: Daemon, image: FoundImage, container: str) -> None:
        self._daemon, self._image, self._container = daemon, image, container

    def check(self) -> None:
        """UserError if there is no repository with refs that can be read at /testbed."""
        if not self.has_folder(TREE):
            raise UserError(f"the image {self._image.name} has no {TREE}: it is no image of SWE-smith's kind")
        if not (self.has_folder(_GIT) and self.has_folder(f"{_GIT}/refs")):
            raise UserError(
                f"{TREE} in the image {self._image.name} is no git repository: it is no image of SWE-smith's kind"
            )
        if self.has_folder(f"{_GIT}/reftable"):
            raise UserError(
                f"the repository at {TREE} in the image {self._image.name} keeps its branches as a reftable, which is "
                "not read: build the image with `git init --ref-format=files`"
            )

    def has_folder(self, path: str) -> bool:
        with self._daemon.asked(f"look for {path} in {self._image.name}"):
            try:
                stream, about = self._daemon.api.get_archive(self._container, path)
            except NotFound:
                return False
            stream.close()
            return bool(about["mode"] & _GO_FOLDER)

    def copy(self, path: str, into: Path) -> None:
        """Unpack a file or folder below `into`; nothing is done if the image lacks it."""
        into.mkdir(parents=True, exist_ok=True)
        with (
            self._daemon.asked(f"read {path} in {self._image.name}"),
            tempfile.TemporaryFile(dir=into) as file,
        ):
            try:
                stream, _ = self._daemon.api.get_archive(self._container, path)
            except NotFound:
                return
            for chunk in stream:
                file.write(chunk)
            file.seek(0)
            _unpack(file, into, f"{path} in {self._image.name}")


def _unpack(file: IO[bytes], into: Path, what: str) -> None:
    try:
        with tarfile.open(fileobj=file) as archive:
            archive.extractall(into, filter="data")
    except tarfile.TarError as error:
        raise UserError(f"{what} cannot be unpacked ({error}): pull the image again") from None


@contextmanager
def _files(daemon: Daemon, image: FoundImage) -> Iterator[_Files]:
    container = daemon.create(image=image.id, network_disabled=True)
    try:
        yield _Files(daemon, image, container)
    finally:
        daemon.remove(container)


def _heads(folder: Path) -> dict[str, str]:
    """Commit of every branch of a git directory, local and of `origin`; a local one wins.

    Loose references win over packed ones; symbolic ones (origin/HEAD) are no branches.
    """
    references: dict[str, str] = {}
    packed = folder / "packed-refs"
    if packed.is_file():
        for line in packed.read_text(errors="surrogateescape").splitlines():
            commit, _, name = line.partition(" ")
            if _HASH.fullmatch(commit):
                references[name] = commit
    for path in sorted((folder / "refs").rglob("*")):
        if path.is_file() and _HASH.fullmatch(commit := path.read_text(errors="replace").strip()):
            references[str(path.relative_to(folder))] = commit
    found: dict[str, str] = {}
    for name, commit in sorted(references.items(), reverse=True):  # remotes first, heads over them
        if match := _BRANCH.fullmatch(name):
            found[match[1]] = commit
    return found


def _resolve_head(folder: Path, heads: dict[str, str], image: FoundImage) -> str:
    """Commit that the image has checked out."""
    head = (folder / "HEAD").read_text(errors="replace").strip()
    commit = heads.get(head.removeprefix("ref: refs/heads/"), head)
    if not _HASH.fullmatch(commit):
        raise UserError(
            f"the repository at {TREE} in the image {image.name} has no commit checked out ({head})"
        )
    return commit
