"""Removing what preparation made, and nothing else, from a daemon that others use too."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import docker_image
import pytest
import tiny_image
from layer_fixtures import forget_made, make, small_layer

from lightning_smith.core.files import write_json
from lightning_smith.images.daemon import LABEL, Daemon
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.layered import add_layer, tags
from lightning_smith.images.proof import agent_volume
from lightning_smith.images.prune import Bases, find_made, remove_made
from lightning_smith.images.pull import image_at
from lightning_smith.repositories.names import image_key

pytestmark = pytest.mark.e2e

PLAIN, TAGGED, PARENT = NAMES = [
    f"swesmith/swesmith.x86_64.pypi_1776_{word}.0badcafe" for word in ("plain", "tagged", "parent")
]
BASE, OTHERS_TAG, CHILD = "acme/base", "acme/keeper:v1", "acme/child"


class Ours(NamedTuple):
    layer: AgentLayer
    folder: Path
    manifests: list[dict[str, Any]]


@pytest.fixture
def ours(daemon: Daemon, tmp_path: Path) -> Iterator[Ours]:
    """Three images of ours, of one base; somebody has a tag on one and an image made of another."""
    layer, manifests = small_layer(tmp_path), []
    tree = docker_image.Tree()
    tree.text("etc/base", "x" * 5000)
    docker_image.import_image(daemon, tree, BASE)
    for name in NAMES:
        tree = docker_image.Tree()
        tree.text("etc/word", name)
        docker_image.derive(daemon, BASE, name, tree)
        manifests.append(make(daemon, name, layer))
        write_json(tmp_path / "images" / f"{image_key(name)}.json", manifests[-1])
    agent_volume(daemon, layer)
    daemon.api.tag(f"{TAGGED}:openai", "acme/keeper", "v1")
    tree = docker_image.Tree()
    tree.text("etc/child", "x")
    docker_image.derive(daemon, f"{PARENT}:openai", CHILD, tree)
    yield Ours(layer, tmp_path / "images", manifests)
    forget_made(daemon)
    remove_made(daemon, find_made(daemon, manifests))


def prune(folder: Path, *options: str, answer: str | None = None) -> subprocess.CompletedProcess[str]:
    """The script, with a terminal that answers, or none."""
    command = [sys.executable, "scripts/images/prune_images.py", "--manifests", str(folder), *options]
    end, terminal = pty.openpty()
    if answer is not None:
        os.write(end, answer.encode())
    try:
        return subprocess.run(
            command,
            cwd=tiny_image.REPOSITORY,
            stdin=terminal if answer is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(end)
        os.close(terminal)


def test_what_is_ours_goes_and_what_is_not_stays(daemon: Daemon, ours: Ours) -> None:
    left = daemon.create(image=BASE, labels={LABEL: f"{socket.gethostname()}/999999999/1"})
    live = daemon.create(image=BASE)
    others = daemon.api.create_container(image=BASE, command=["none"])["Id"]
    made = [manifest["image"]["id"] for manifest in ours.manifests]

    done = prune(ours.folder)
    assert done.returncode == 1 and done.stderr.startswith("error: there is nobody to ask")
    done = prune(ours.folder, answer="n\n")
    assert done.returncode == 0, done.stderr
    assert "3 images, 1 containers and 0 volumes, at most " in done.stdout
    assert done.stdout.rstrip().endswith("remove these? [y/N] nothing was removed")
    assert all(image_at(daemon, name) for name in (*made, *NAMES, CHILD, BASE, ours.layer.stage))
    assert f"image {PLAIN}:openai, {PLAIN}:openai-{ours.layer.short}\n" in done.stdout
    assert "acme" not in done.stdout

    # The layer's own image stays while the others' have it.
    done = prune(ours.folder, answer="y\n")
    assert done.returncode == 0 and "2 removed, 2 kept" in done.stdout, done.stdout + done.stderr
    assert f"kept image {TAGGED}:openai, " in done.stdout and f"kept image {PARENT}:openai, " in done.stdout
    assert [image_at(daemon, tag) for name in NAMES for tag in tags(name, ours.layer)] == [None] * 6
    plain, tagged, parent = (manifest["image"]["id"] for manifest in ours.manifests)
    assert image_at(daemon, plain) is None
    assert image_at(daemon, OTHERS_TAG) == tagged and image_at(daemon, parent) == parent
    assert all(image_at(daemon, name) for name in (*NAMES, CHILD, BASE, ours.layer.stage))
    containers = {row["Id"] for row in daemon.api.containers(all=True)}
    assert left not in containers and {live, others} <= containers
    daemon.remove(live)
    daemon.remove(others)
    assert prune(ours.folder, "--yes").stdout == "nothing to remove\n"

    # With their images gone, and the parent's with them, nothing needs the layer's own any more.
    for name in (OTHERS_TAG, CHILD):
        daemon.api.remove_image(name)
    volume = agent_volume(daemon, ours.layer)
    done = prune(ours.folder, "--yes")
    assert done.returncode == 0 and f"image {ours.layer.stage}\nvolume {volume}\n" in done.stdout, done.stderr
    assert image_at(daemon, ours.layer.stage) is None
    assert all(image_at(daemon, name) for name in NAMES)
    unknown = prune(ours.folder, "--yes", "--image", "none")
    assert unknown.stderr == f"error: {ours.folder} has no manifest of none: give an image's key\n"


def test_bases_leftovers_and_tags_that_have_moved(daemon: Daemon, ours: Ours, tmp_path: Path) -> None:
    plain, tagged, _ = ours.manifests
    layer_bytes = (tmp_path / "root/opt/agent/file").stat().st_size
    found = find_made(daemon, [plain])
    assert set(found.images) == {plain["image"]["id"]} and found.freed_bytes == layer_bytes
    assert len(find_made(daemon, ours.manifests, bases=Bases.PULLED).images) == 3
    pulled = {**plain, "base": {**plain["base"], "compressed_bytes": 5}}
    found = find_made(daemon, [pulled], bases=Bases.PULLED)
    assert found.images[plain["base"]["id"]] == (f"{PLAIN}:latest",)
    assert found.freed_bytes == layer_bytes + len(PLAIN)  # and not what the others have too
    assert len(find_made(daemon, ours.manifests, bases=Bases.ALL).images) == 6

    # An image of an earlier layer, which no manifest names any more, and the ones of others who inherit its labels.
    earlier = small_layer(tmp_path / "earlier")
    old = add_layer(daemon, daemon.image(PLAIN), earlier)
    assert old not in find_made(daemon, ours.manifests).images
    found = find_made(daemon, ours.manifests, leftovers=True)
    assert found.images[old] == () and image_at(daemon, earlier.stage) in found.images
    assert image_at(daemon, CHILD) not in found.images
    assert OTHERS_TAG not in found.images[tagged["image"]["id"]]

    # A tag that has moved is not ours, not even between the question and the answer.
    daemon.api.tag(CHILD, PLAIN, "openai", force=True)
    remove_made(daemon, found)
    assert image_at(daemon, f"{PLAIN}:openai") == image_at(daemon, CHILD)
    assert image_at(daemon, old) is None and image_at(daemon, earlier.stage) is None
    write_json(ours.folder / f"{image_key(PLAIN)}.json", pulled)
    done = prune(ours.folder, "--yes", "--bases", "pulled")
    assert done.returncode == 0 and f"image {PLAIN}:latest\n" in done.stdout, done.stderr
    assert image_at(daemon, f"{PLAIN}:latest") is None and image_at(daemon, TAGGED) is not None
