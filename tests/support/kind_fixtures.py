"""Fixtures of the kinds of workspaces, for the tests here and for those of tests/attacks."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import docker_image
import pytest
import tiny_image
from docker_daemon import docker_daemon
from kinds import KINDS, Kind
from plain_pod import PlainPods

from lightning_smith.core.process import stage_lock
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.pull import image_at
from lightning_smith.repositories.local import LocalImage
from lightning_smith.sandbox.bwrap import Bwrap, ResourceLimits
from lightning_smith.sandbox.docker import DockerSandbox
from lightning_smith.sandbox.scratch import Scratch


@dataclass(frozen=True)
class Shared:
    """What the processes of one run of pytest know of the daemon that they share; `folder` is one of theirs."""

    folder: Path

    @classmethod
    def of(cls, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Shared:
        base = tmp_path_factory.getbasetemp()
        of_all = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        return cls(of_all / f"docker-{hashlib.sha256(daemon.host.encode()).hexdigest()[:16]}")

    def locked(self) -> AbstractContextManager[None]:
        return stage_lock(self.folder, "images", wait_s=300)

    @contextmanager
    def user(self, daemon: Daemon) -> Iterator[None]:
        """Somebody who uses the daemon: the images that were imported go with the last."""
        user, ids = self.folder / f"{uuid.uuid4().hex}.user", self.folder / "imported"
        with self.locked():
            user.touch()
        try:
            yield
        finally:
            with self.locked():
                with ids.open("a") as file:
                    file.writelines(f"{image}\n" for image in docker_image.imported)
                user.unlink()
                if not list(self.folder.glob("*.user")):
                    docker_image.imported.update(ids.read_text().split())
                    docker_image.remove_imported(daemon)
                    ids.unlink()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A Docker daemon; skips, saying why, where there is none and none can be started."""
    with docker_daemon() as daemon, Shared.of(daemon, tmp_path_factory).user(daemon):
        yield daemon


@pytest.fixture(scope="session")
def docker_image_name(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the tiny image as a Docker image of SWE-smith's layout, built once for all processes."""
    shared = Shared.of(daemon, tmp_path_factory)
    made = shared.folder / "tiny_image"
    with shared.locked():
        if not made.exists() or image_at(daemon, tiny_image.IMAGE_NAME) != made.read_text():
            docker_image.build(daemon, tmp_path_factory.mktemp("docker"))
            made.write_text(daemon.image(tiny_image.IMAGE_NAME).id)
    return tiny_image.IMAGE_NAME


@pytest.fixture(scope="session")
def local_image(tmp_path_factory: pytest.TempPathFactory) -> LocalImage:
    """The tiny image as a local one."""
    return LocalImage.open(tiny_image.build(tmp_path_factory.mktemp("local")))


@pytest.fixture(scope="session")
def pods(
    daemon: Daemon, docker_image_name: str, local_image: LocalImage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlainPods]:
    """Pods of the tiny image."""
    root = tmp_path_factory.mktemp("root")
    docker_image.clone(local_image.repository, root / "testbed")
    with PlainPods(daemon, docker_image_name, root) as pods:
        yield pods


@pytest.fixture(scope="session", params=KINDS)
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, local_image: LocalImage
) -> Kind:
    """Each kind of workspace; skips containers, saying why, where there is no daemon and none can be started."""
    if request.param == "bwrap":
        bwrap = Bwrap.find(tiny_image.TESTBED_PYTHON)
        with_limits = partial(Bwrap, bwrap.program, bwrap.testbed_python)
        return Kind("bwrap", bwrap, local_image, with_limits, Scratch().parent)
    name, daemon = request.getfixturevalue("docker_image_name"), request.getfixturevalue("daemon")
    disk = Path(daemon.api.info()["DockerRootDir"])
    if request.param == "docker":
        docker = DockerSandbox.find(daemon, tmp_path_factory.mktemp("copies"))
        return Kind("docker", docker, docker.prepare(name), partial(DockerSandbox, docker.images), disk)
    pods = request.getfixturevalue("pods")
    pod = pods.sandbox(ResourceLimits())
    image = pod.prepare(name)
    pod.workbench(image)[0].close()  # looks into the image once
    return Kind("pod", pod, image, pods.sandbox, disk)
