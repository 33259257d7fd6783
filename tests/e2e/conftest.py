"""A clone of the repository whose environments are those of this checkout, for runs of the real workflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import docker_image
import pytest
import tiny_image
from checkout import copy_checkout
from docker_daemon import docker_daemon
from kinds import Kind
from tiny_workflow import ENVIRONMENTS, ROOT, Workflow

from lightning_smith.environments import create
from lightning_smith.files import write_json
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.local import LocalImage
from lightning_smith.rollout.bwrap import Bwrap
from lightning_smith.rollout.docker import DockerSandbox


def padded(parent: Path, length: int) -> Path:
    """A folder in `parent` whose path has `length` characters."""
    return parent / ("x" * (length - len(str(parent)) - 1))


def make_workflow(tmp_path_factory: pytest.TempPathFactory, name: str) -> Workflow:
    """Its path has 150 characters, a blank and an é among them, and the temporary folder's 120."""
    clones, temporary = tmp_path_factory.mktemp("a clone, é"), tmp_path_factory.mktemp("temporary")
    clone = Workflow(copy_checkout(padded(clones, 150)), padded(temporary, 120), name)
    clone.temporary.mkdir()
    for environment in ENVIRONMENTS:
        made = create(ROOT / "envs" / environment)
        write_json(clone.work / "envs" / f"{environment}.json", made)
        (clone.folder / "envs" / environment / ".venv").symlink_to(ROOT / "envs" / environment / ".venv")
    sdists = ROOT / "work" / "mini" / "sdists"
    if sdists.is_dir():
        shutil.copytree(sdists, clone.work / "sdists")
    return clone


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
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The tiny experiment."""
    return make_workflow(tmp_path_factory, "tiny")


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The data funnel with every filter on."""
    return make_workflow(tmp_path_factory, "certified")


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
