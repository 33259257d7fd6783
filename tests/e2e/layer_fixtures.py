"""The agent layer, built once a session with the testbed's interpreter, and what prepares images with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker_image
import pytest
import tiny_image

from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import AgentLayer, build_layer
from lightning_smith.images.layered import BASE_LABEL
from lightning_smith.images.prepare import Certifier, Preparation
from lightning_smith.images.proof import agent_volume
from lightning_smith.images.pull import Puller, PullSettings
from lightning_smith.images.registry import Registries


def build(folder: Path) -> AgentLayer:
    project = tiny_image.REPOSITORY / "envs/agent"
    return build_layer(folder, python=str(tiny_image.TESTBED_PYTHON), project=project)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> AgentLayer:
    return build(tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="session")
def layer(daemon: Daemon, built: AgentLayer) -> Iterator[AgentLayer]:
    yield built
    forget_made(daemon)
    daemon.api.remove_volume(agent_volume(daemon, built))  # both made again if a test has removed them
    daemon.api.remove_image(built.stage)


def forget_made(daemon: Daemon) -> None:
    """Remove the images that have the layer."""
    made = daemon.api.images(filters={"label": BASE_LABEL}, all=True)
    docker_image.remove_images(daemon, (image["Id"] for image in made))


def preparation(
    daemon: Daemon, layer: AgentLayer, out: Path, certifier: Certifier | None = None
) -> Preparation:
    """Of images that the daemon has."""
    puller = Puller(daemon, Registries(), settings=PullSettings(tries=1))
    return Preparation(daemon, puller, lambda family: layer, out, certifier=certifier)
