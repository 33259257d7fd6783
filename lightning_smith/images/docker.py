"""The repository inside a Docker image, read from the image's files: nothing of the image is run.

    DockerBranches(daemon).list_branches("swebench/swesmith.x86_64.pypi_1776_boltons.d39cfd15")
    image = DockerImages(daemon, folder)[image_name]

A container is created and never started, and the daemon hands out files of it. So neither a program of the image
nor a network has a part in it, and an image for another processor can be read as well.

The copy of the repository that an image leaves on this machine is a bare one (`repository.py`).
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from docker.errors import NotFound

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.core.process import stage_lock
from lightning_smith.images.daemon import LABEL, Daemon, FoundImage
from lightning_smith.repositories.bare import GIT_FOLDER, check_repository, heads, make_bare
from lightning_smith.repositories.branches import ImageBranches
from lightning_smith.repositories.names import image_key
from lightning_smith.repositories.revisions import MAIN, Revisions

TEST_COMMAND_LABEL = f"{LABEL}.test_command"
"""Label with which an image says itself how its tests are run: the words as a JSON list, test files follow them."""

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
            check_repository(files.has_folder, image.name)
            for part in ("packed-refs", "refs", "HEAD"):
                files.copy(f"{GIT_FOLDER}/{part}", folder)
            found = heads(folder)
        return ImageBranches(image.name, image.digest, frozenset(found) - {MAIN})


@dataclass(frozen=True)
class DockerImage(Revisions):
    """An image of the daemon whose repository has been copied to this machine."""

    found: FoundImage
    folder: Path
    """Holds `repository.git`."""
    test_command: tuple[str, ...] = ()

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


def told_command(image: FoundImage) -> tuple[str, ...]:
    """Return the test command that an image's maker wrote into its configuration, where nothing that runs in it can
    reach.
    """
    return tuple(json.loads(image.labels.get(TEST_COMMAND_LABEL, "[]")))


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
            self._opened[image_name] = DockerImage(found, folder, told_command(found))
        return self._opened[image_name]


def _copy_repository(daemon: Daemon, image: FoundImage, folder: Path) -> None:
    """Make `folder`: a bare repository with every branch of the image's, and nothing else of its settings."""
    shutil.rmtree(folder, ignore_errors=True)
    copied = folder / "copied"
    with _files(daemon, image) as files:
        check_repository(files.has_folder, image.name)
        files.copy(GIT_FOLDER, copied)
    make_bare(copied / ".git", folder / "repository.git", image.name, move=True)
    shutil.rmtree(copied)
    write_json(folder / "copied.json", {"image": image.id})


class _Files:
    """Files of an image, through a container that is never started."""

    def __init__(self, daemon: Daemon, image: FoundImage, container: str) -> None:
        self._daemon, self._image, self._container = daemon, image, container

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
