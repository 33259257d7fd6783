"""Removing what preparation made, and nothing else, from a daemon that others use too."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker_image
import pytest
import tiny_image
from layer_fixtures import forget_made, preparation

from lightning_smith.files import write_json
from lightning_smith.images.daemon import LABEL, Daemon
from lightning_smith.images.layer import AgentLayer, write_tar
from lightning_smith.images.layered import add_layer, tags
from lightning_smith.images.names import image_key
from lightning_smith.images.proof import agent_volume
from lightning_smith.images.prune import Bases, find_made, remove_made
from lightning_smith.images.pull import image_at

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not tiny_image.TESTBED_PYTHON.exists(),
        reason="needs the testbed: uv sync --frozen --compile-bytecode --project envs/testbed",
    ),
]

PLAIN, TAGGED, PARENT = NAMES = [
    f"swesmith/swesmith.x86_64.pypi_1776_{word}.0badcafe" for word in ("plain", "tagged", "parent")
]
OTHERS_TAG, CHILD = "acme/keeper:v1", "acme/child"


@pytest.fixture
def prepared(
    daemon: Daemon, docker_image_name: str, layer: AgentLayer, tmp_path: Path
) -> Iterator[list[dict]]:
    """Three images of ours; somebody has a tag on one and an image made of another."""
    for name in NAMES:
        tree = docker_image.Tree()
        tree.text("etc/word", name)
        docker_image.derive(daemon, docker_image_name, name, tree)
    made = preparation(daemon, layer, tmp_path / "images")
    manifests = [made.prepare(name) for name in NAMES]
    daemon.api.tag(f"{TAGGED}:openai", "acme/keeper", "v1")
    tree = docker_image.Tree()
    tree.text("etc/child", "x")
    docker_image.derive(daemon, f"{PARENT}:openai", CHILD, tree)
    yield manifests
    forget_made(daemon)


def prune(folder: Path, *options: str, answer: str | None = None) -> subprocess.CompletedProcess[str]:
    """The script, with a terminal that answers, or none."""
    command = [sys.executable, "scripts/prune_images.py", "--manifests", str(folder), *options]
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


def test_what_is_ours_goes_and_what_is_not_stays(
    daemon: Daemon, docker_image_name: str, layer: AgentLayer, prepared: list[dict], tmp_path: Path
) -> None:
    ended = {LABEL: f"{socket.gethostname()}/999999999/1"}
    left = daemon.create(image=PLAIN, labels=ended)
    ours = daemon.create(image=docker_image_name)
    others = daemon.api.create_container(image=docker_image_name, command=["none"])["Id"]
    before = {row["Id"] for row in daemon.api.images()}

    done = prune(tmp_path / "images")
    assert done.returncode == 1 and done.stderr.startswith("error: there is nobody to ask")
    done = prune(tmp_path / "images", answer="n\n")
    assert done.returncode == 0, done.stderr
    assert "3 images, 1 containers and 0 volumes, at most " in done.stdout
    assert done.stdout.rstrip().endswith("remove these? [y/N] nothing was removed")
    assert {row["Id"] for row in daemon.api.images()} == before
    assert f"image {PLAIN}:openai, {PLAIN}:openai-{layer.short}\n" in done.stdout
    assert "acme" not in done.stdout and docker_image_name not in done.stdout

    # The layer's own image stays while the others' have it.
    done = prune(tmp_path / "images", answer="y\n")
    assert done.returncode == 0 and "2 removed, 2 kept" in done.stdout, done.stdout + done.stderr
    assert f"kept image {TAGGED}:openai, " in done.stdout and f"kept image {PARENT}:openai, " in done.stdout
    assert [image_at(daemon, tag) for name in NAMES for tag in tags(name, layer)] == [None] * 6
    plain, tagged, parent = (manifest["image"]["id"] for manifest in prepared)
    assert image_at(daemon, plain) is None
    assert image_at(daemon, OTHERS_TAG) == tagged and image_at(daemon, parent) == parent
    assert all(image_at(daemon, name) for name in (*NAMES, CHILD, docker_image_name, layer.stage))
    containers = {row["Id"] for row in daemon.api.containers(all=True)}
    assert left not in containers and {ours, others} <= containers
    daemon.remove(ours)
    daemon.remove(others)
    assert prune(tmp_path / "images", "--yes").stdout == "nothing to remove\n"

    # With their images gone, and the parent's with them, nothing needs the layer's own any more.
    for name in (OTHERS_TAG, CHILD):
        daemon.api.remove_image(name)
    volume = agent_volume(daemon, layer)
    done = prune(tmp_path / "images", "--yes")
    assert done.returncode == 0 and f"image {layer.stage}\nvolume {volume}\n" in done.stdout, done.stderr
    assert image_at(daemon, layer.stage) is None
    assert all(image_at(daemon, name) for name in NAMES)
    unknown = prune(tmp_path / "images", "--yes", "--image", "none")
    assert unknown.stderr == f"error: {tmp_path}/images has no manifest of none: give an image's key\n"


def test_bases_leftovers_and_tags_that_have_moved(
    daemon: Daemon, layer: AgentLayer, prepared: list[dict], tmp_path: Path
) -> None:
    plain = prepared[0]
    assert set(find_made(daemon, [plain]).images) == {plain["image"]["id"]}
    assert len(find_made(daemon, prepared, bases=Bases.PULLED).images) == 3
    pulled = {**plain, "base": {**plain["base"], "compressed_bytes": 5}}
    found = find_made(daemon, [pulled], bases=Bases.PULLED)
    assert found.images[plain["base"]["id"]] == (f"{PLAIN}:latest",)
    # Of the base the one file that it has over what the others are made of, besides the layer.
    layer_bytes = find_made(daemon, [plain]).freed_bytes
    assert layer_bytes <= layer.bytes and layer_bytes > 0.9 * layer.bytes
    assert layer_bytes < found.freed_bytes < layer_bytes + 1000
    assert len(find_made(daemon, prepared, bases=Bases.ALL).images) == 6

    # An image of an earlier layer, which no manifest names any more, and the ones of others who inherit its labels.
    (tmp_path / "root/opt/agent").mkdir(parents=True)
    (tmp_path / "root/opt/agent/file").write_text("x")
    diff_id = write_tar(tmp_path / "root", tmp_path / "layer.tar")
    earlier = AgentLayer(tmp_path / "layer.tar", diff_id, "glibc", "3", {}, "")
    old = add_layer(daemon, daemon.image(PLAIN), earlier)
    assert old not in find_made(daemon, prepared).images
    found = find_made(daemon, prepared, leftovers=True)
    assert found.images[old] == () and image_at(daemon, earlier.stage) in found.images
    assert image_at(daemon, CHILD) not in found.images
    assert OTHERS_TAG not in found.images[prepared[1]["image"]["id"]]

    # A tag that has moved is not ours, neither before nor between the question and the answer.
    daemon.api.tag(CHILD, PLAIN, "openai", force=True)
    remove_made(daemon, found)
    assert image_at(daemon, f"{PLAIN}:openai") == image_at(daemon, CHILD)
    assert image_at(daemon, old) is None and image_at(daemon, earlier.stage) is None
    write_json(tmp_path / "images" / f"{image_key(PLAIN)}.json", pulled)
    done = prune(tmp_path / "images", "--yes", "--bases", "pulled")
    assert done.returncode == 0 and f"image {PLAIN}:latest\n" in done.stdout, done.stderr
    assert image_at(daemon, f"{PLAIN}:latest") is None and image_at(daemon, TAGGED) is not None
