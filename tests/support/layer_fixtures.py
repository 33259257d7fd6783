"""The agent layer, built once a session with the testbed's interpreter, and what prepares images with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker_image
import pytest
import tiny_image

from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import AgentLayer, build_layer, write_tar
from lightning_smith.images.layered import BASE_LABEL, add_layer, give_tags, tags
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
    return Preparation(daemon, puller, lambda: layer, out, certifier=certifier)


def small_layer(folder: Path) -> AgentLayer:
    """A layer of one file that stands for the agent's where nothing is run."""
    (folder / "root/opt/agent").mkdir(parents=True)
    (folder / "root/opt/agent/file").write_text(f"{folder}\n" * 100)
    return AgentLayer(
        folder / "layer.tar", write_tar(folder / "root", folder / "layer.tar"), "glibc", "3", {}, ""
    )


def make(daemon: Daemon, name: str, layer: AgentLayer) -> dict[str, Any]:
    """The image of a name with a layer, tagged without proof; returns what a manifest says of both."""
    base = daemon.image(name)
    image_id = add_layer(daemon, base, layer)
    give_tags(daemon, image_id, name, layer)
    return {
        "image_name": name,
        "source": name,
        "base": {"id": base.id, "digest": base.digest, "bytes": 1000, "compressed_bytes": 0},
        "layer": {"diff_id": layer.diff_id, "bytes": layer.bytes},
        "image": {"id": image_id, "tags": list(tags(name, layer)), "pushed": None},
    }
