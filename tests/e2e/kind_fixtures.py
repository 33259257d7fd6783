"""Fixtures of the kinds of workspaces, for the tests here and for those of tests/attacks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import docker_image
import pytest
import tiny_image
from docker_daemon import docker_daemon
from kinds import KINDS, Kind
from plain_pod import PlainPods

from lightning_smith.images.daemon import Daemon
from lightning_smith.images.local import LocalImage
from lightning_smith.rollout.bwrap import Bwrap, ResourceLimits
from lightning_smith.rollout.docker import DockerSandbox
from lightning_smith.rollout.scratch import Scratch

_users: list[Daemon] = []
"""One for each folder of tests that has asked for a daemon: all use the same, and the images go with the last."""


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A Docker daemon; skips, saying why, where there is none and none can be started."""
    with docker_daemon() as daemon:
        _users.append(daemon)
        yield daemon
        _users.pop()
        if not _users:
            docker_image.remove_imported(daemon)


@pytest.fixture(scope="session")
def docker_image_name(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the tiny image as a Docker image of SWE-smith's layout."""
    return docker_image.build(daemon, tmp_path_factory.mktemp("docker"))


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
