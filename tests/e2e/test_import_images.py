"""Images imported into a containerd that knows nothing of the Docker daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker_image
import pytest
import tiny_image
from docker_daemon import give_up
from layer_fixtures import forget_made, make, small_layer

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.images.containerd import Node, import_images, reference
from lightning_smith.images.daemon import Daemon

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.getuid() != 0, reason="containerd needs root"),
]

NAMES = ("swesmith/swesmith.x86_64.pypi_1776_here.0badcafe", "acme/other", "plain")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A containerd of this module's own, through a command line as a node's would be."""
    if shutil.which("containerd") is None or shutil.which("ctr") is None:
        give_up("containerd is not installed (apt-get install containerd)")
    folder = Path(tempfile.mkdtemp(prefix="lightning-smith-containerd-"))
    (folder / "config.toml").write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    command = ["containerd", "--config", f"{folder}/config.toml", "--address", f"{folder}/socket"]
    command += ["--root", f"{folder}/root", "--state", f"{folder}/state"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    node = Node(f"env WHERE=here ctr --address {folder}/socket -n k8s.io")
    try:
        for _ in range(300):
            try:
                node.run("version")
                break
            except UserError:
                if process.poll() is not None:
                    give_up(f"containerd does not start here ({(folder / 'log').read_text()[-300:]})")
                time.sleep(0.1)
        yield node
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def manifests(daemon: Daemon, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """Small images with a small layer, and what their manifests say that an import reads."""
    small, made = small_layer(tmp_path), []
    for name in NAMES:
        tree = docker_image.Tree()
        tree.text("etc/word", name)
        docker_image.import_image(daemon, tree, name)
        made.append(make(daemon, name, small))
    yield made
    forget_made(daemon)
    daemon.api.remove_image(small.stage)


def test_only_what_a_node_lacks_is_imported_and_what_it_has_is_verified(
    daemon: Daemon, node: Node, manifests: list[dict[str, Any]], tmp_path: Path
) -> None:
    paths = [tmp_path / f"{n}.json" for n in range(len(manifests))]
    for path, manifest in zip(paths, manifests, strict=True):
        write_json(path, manifest)
    out = tmp_path / "nodes.tsv"
    command = [
        sys.executable,
        "scripts/images/import_into_nodes.py",
        "--manifests",
        *map(str, paths),
        "--out",
        str(out),
    ]

    def run(*nodes: str) -> subprocess.CompletedProcess[str]:
        options = [f"--node={command}" for command in nodes]
        return subprocess.run(
            [*command, *options], cwd=tiny_image.REPOSITORY, capture_output=True, text=True, check=False
        )

    done = run(node.command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": imported as ") == 3 and "[images] 3 images are at 1 nodes" in done.stderr
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert rows[0] == ["node", "image", "reference", "digest", "id"]
    for manifest, row in zip(manifests, rows[1:], strict=True):
        moving, own = map(reference, manifest["image"]["tags"])
        assert row == [node.command, manifest["image_name"], own, row[3], manifest["image"]["id"]]
        assert node.images()[own] == node.images()[moving] == row[3]
    assert [row[2].partition(":")[0] for row in rows[1:]] == [
        f"docker.io/{NAMES[0]}", "docker.io/acme/other", "docker.io/library/plain",
    ]  # fmt: skip
    assert run(node.command).stderr == "[images] 3 images are at 1 nodes\n"

    # Gone, and in the place of another: both are imported again, and a tag that has moved is put back.
    node.run("images", "rm", rows[1][2])
    node.tag(rows[3][2], rows[2][2])
    node.tag(rows[2][2], reference(manifests[2]["image"]["tags"][0]))
    again = run(node.command)
    assert again.returncode == 0 and again.stderr.count(": imported as ") == 2, again.stderr
    assert node.images()[reference(manifests[2]["image"]["tags"][0])] == rows[3][3]

    # One that the Docker daemon has no longer fails alone, and so does a node that does not answer.
    node.run("images", "rm", rows[1][2], rows[2][2])
    daemon.api.tag(NAMES[0], *manifests[0]["image"]["tags"][1].split(":"), force=True)
    failed = run(node.command, "false ctr", "no-such-program")
    assert failed.returncode == 1 and "error: 3 images could not be imported:\n" in failed.stderr
    assert f"  {node.command}: {NAMES[0]}: the Docker daemon has another {NAMES[0]}:openai-" in failed.stderr
    assert "  false ctr: every image: `false ctr images check` failed: exit code 1\n" in failed.stderr
    assert "every image: no-such-program does not start (No such file or directory)" in failed.stderr
    assert rows[2][2] in node.images() and rows[1][2] not in node.images()
    nobody = run()
    assert nobody.stderr.startswith("error: images.import_into names no node")


def test_an_import_that_stalls_or_is_cut_leaves_a_sentence(
    daemon: Daemon, node: Node, manifests: list[dict[str, Any]]
) -> None:
    with pytest.raises(UserError, match="was ended after 1 s: see whether the node answers"):
        Node(f"{sys.executable} -c 'import time; time.sleep(60)'").load([b"x"], timeout_s=1)
    with pytest.raises(UserError, match=r"images import` failed: ctr: .*"):
        node.load([b"x" * 1000], timeout_s=60)
    with pytest.raises(UserError, match=r"`false version` failed: exit code 1"):
        Node("false").run("version")
    with pytest.raises(
        UserError, match=r"containerd has nothing whole as docker.io/.*:openai-.* after the import"
    ):
        deaf = _Deaf(node.command)
        raise UserError(import_images(daemon, deaf, manifests[:1]).failures[NAMES[0]])


class _Deaf(Node):
    """Takes an image and keeps nothing."""

    def images(self, *references: str) -> dict[str, str]:
        return {}
