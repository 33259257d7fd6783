"""Fixtures of the kinds of workspaces, for the tests here and for those of tests/attacks."""

from __future__ import annotations

from collections.abc import Iterator

import docker_image
import pytest
import tiny_image
from docker_daemon import docker_daemon
from kinds import Kind

from lightning_smith.images.daemon import Daemon
from lightning_smith.images.local import LocalImage
from lightning_smith.rollout.bwrap import Bwrap
from lightning_smith.rollout.docker import DockerSandbox


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A Docker daemon; skips, saying why, where there is none and none can be started."""
    with docker_daemon() as daemon:
        yield daemon
        docker_image.remove_imported(daemon)


@pytest.fixture(scope="session")
def docker_image_name(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the tiny image as a Docker image of SWE-smith's layout."""
    return docker_image.build(daemon, tmp_path_factory.mktemp("docker"))


@pytest.fixture(scope="session")
def local_image(tmp_path_factory: pytest.TempPathFactory) -> LocalImage:
    """The tiny image as a local one."""
    return LocalImage.open(tiny_image.build(tmp_path_factory.mktemp("local")))


@pytest.fixture(scope="session", params=["bwrap", "docker"])
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, local_image: LocalImage
) -> Kind:
    """Each kind of workspace; skips Docker, saying why, where there is no daemon and none can be started."""
    if request.param == "bwrap":
        return Kind("bwrap", Bwrap.find(tiny_image.TESTBED_PYTHON), local_image)
    name = request.getfixturevalue("docker_image_name")
    sandbox = DockerSandbox.find(request.getfixturevalue("daemon"), tmp_path_factory.mktemp("copies"))
    return Kind("docker", sandbox, sandbox.prepare(name))
