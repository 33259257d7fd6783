"""Repositories inside Docker images, read by a real daemon."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import docker_image
import pytest
import tiny_image
from docker_daemon import Proxy, own_daemon

from lightning_smith.core.errors import UserError
from lightning_smith.core.git import git
from lightning_smith.images.daemon import LABEL, Daemon, DockerError, connect
from lightning_smith.images.docker import DockerBranches, DockerImages
from lightning_smith.repositories.branches import read_branches
from lightning_smith.repositories.names import image_key

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]


def containers(daemon: Daemon) -> list[str]:
    """Those that have our label."""
    return [each["Id"] for each in daemon.api.containers(all=True, filters={"label": LABEL})]


def left_unstarted(daemon: Daemon) -> list[str]:
    """Containers that this process made and never started; those of pods have some seconds to start."""
    deadline_s = time.monotonic() + 10
    while True:
        found = daemon.api.containers(all=True, filters={"label": LABEL, "status": "created"})
        left = [each["Id"] for each in found if f"/{os.getpid()}/" in each["Labels"][LABEL]]
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.1)


def test_branches_are_read_without_running_anything(daemon: Daemon, docker_image_name: str) -> None:
    found = DockerBranches(daemon).list_branches(docker_image_name)
    assert found.branches == {tiny_image.TASK} and found.image_name == docker_image_name
    assert found.digest == daemon.api.inspect_image(docker_image_name)["Id"]
    assert left_unstarted(daemon) == []
    key = image_key(docker_image_name)
    assert DockerBranches(daemon).list_branches(key).image_name == docker_image_name


def test_the_copy_has_every_commit(daemon: Daemon, docker_image_name: str, tmp_path: Path) -> None:
    image = DockerImages(daemon, tmp_path / "copies")[docker_image_name]
    local = tiny_image.build(tmp_path / "images") / "repository.git"
    for revision in ("main", tiny_image.TASK, f"{tiny_image.TASK}~1"):
        assert image.commit(revision).encode() == git(local, "rev-parse", revision).strip()
    assert image.base(tiny_image.TASK) == f"{tiny_image.TASK}~1"
    assert git(image.repository, "fsck", "--strict") == b""
    assert set(image.changed_files(tiny_image.TASK)) == {"src/widget/core.py", "tests/test_core.py"}
    assert image.changed_files(tiny_image.TASK)["tests/test_core.py"] is None
    with pytest.raises(UserError, match="has no branch or commit pypi__other"):
        image.commit("pypi__other")
    (tmp_path / "copies" / image.folder.name / "copied.json").write_text('{"image": "sha256:0"}')
    with pytest.raises(UserError, match="is not the copy of"):
        DockerImages(daemon, tmp_path / "copies")[docker_image_name]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "loose"])
def test_local_branches_win_and_symbolic_ones_are_none(daemon: Daemon, tmp_path: Path, packed: bool) -> None:
    folder = docker_image.clone(tiny_image.build(tmp_path) / "repository.git", tmp_path / "clone")
    repository = folder / ".git"
    git(repository, "branch", "a/b", "main")
    git(repository, "update-ref", f"refs/heads/{tiny_image.TASK}", "main")
    git(repository, "tag", "v1", "main")
    if packed:
        git(repository, "pack-refs", "--all")
        git(repository, "branch", "--force", "a/b", f"origin/{tiny_image.TASK}")  # loose over packed
    tree = docker_image.Tree()
    tree.add(folder, "testbed")
    name = docker_image.import_image(daemon, tree, "acme/local_branches")
    assert DockerBranches(daemon).list_branches(name).branches == {tiny_image.TASK, "a/b"}
    image = DockerImages(daemon, tmp_path / "copies")[name]
    assert image.commit(tiny_image.TASK) == image.commit("main")
    assert (image.commit("a/b") == image.commit("main")) is not packed


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["etc/passwd"], "has no /testbed"),
        (["testbed/README"], "is no git repository"),
        (["testbed/.git"], "is no git repository"),
        (["testbed/.git/refs/heads", "testbed/.git/reftable/x"], "keeps its branches as a reftable"),
    ],
    ids=["no /testbed", "no repository", "a work tree", "reftable"],
)
def test_images_of_another_kind_are_refused(daemon: Daemon, files: list[str], message: str) -> None:
    tree = docker_image.Tree()
    for name in files:
        tree.text(name, "x")
    name = docker_image.import_image(daemon, tree, "acme/odd")
    with pytest.raises(UserError, match=message):
        DockerBranches(daemon).list_branches(name)
    assert left_unstarted(daemon) == []


def test_an_absent_image_is_named_with_the_command_that_pulls_it(daemon: Daemon) -> None:
    key = "swesmith.x86_64.pypi_1776_absent.0badcafe"
    with pytest.raises(UserError, match=rf"has no image {key}: pull it \(docker pull swebench/{key}\)"):
        daemon.image(key)
    with pytest.raises(
        UserError, match=r"has no image acme/absent:v1: pull it \(docker pull acme/absent:v1\)"
    ):
        daemon.image("acme/absent:v1")


def test_an_image_is_found_by_its_older_spellings(daemon: Daemon) -> None:
    tree = docker_image.Tree()
    tree.text("etc/passwd", "x")
    old = docker_image.import_image(daemon, tree, "swesmith.x86_64.pypi__gadget.0badcafe")
    assert daemon.image("swesmith.x86_64.pypi_1776_gadget.0badcafe").name == old
    second = docker_image.import_image(daemon, tree, "jyangballin/swesmith.x86_64.pypi_1776_gadget.0badcafe")
    assert daemon.image(old).name == second  # of the two, the later one


def test_a_daemon_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    with pytest.raises(DockerError, match=r"no Docker daemon answers at unix://.*set DOCKER_HOST"):
        connect()


def test_a_daemon_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, daemon: Daemon
) -> None:
    """A daemon too busy to answer is no verdict: the sentence says for how long it was asked."""
    proxy = Proxy(tmp_path / "s")
    monkeypatch.setenv("DOCKER_HOST", proxy.host)
    with connect(timeout_s=1) as slow:
        proxy.fall_silent()
        with pytest.raises(DockerError, match="Docker did not answer within 1 s"):
            slow.image("acme/x")
    proxy.close()


def test_leftovers_are_ours_or_stay(daemon: Daemon, docker_image_name: str) -> None:
    """A killed process leaves its containers; the next one removes these and no others."""
    script = (
        "from lightning_smith.images.daemon import connect\n"
        f"print(connect().create(image={docker_image_name!r}), flush=True)\n"
    )
    left = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    mine = daemon.create(image=docker_image_name)
    foreign = daemon.api.create_container(docker_image_name, ["none"], name="lightning-smith-foreign")["Id"]
    elsewhere = daemon.create(image=docker_image_name, labels={LABEL: "elsewhere/1/1"})
    try:
        assert left in containers(daemon)
        daemon.sweep()
        alive = [container["Id"] for container in daemon.api.containers(all=True)]
        assert left not in alive and {mine, foreign, elsewhere} <= set(alive)
    finally:
        for container in (mine, foreign, elsewhere):
            daemon.remove(container)
    daemon.remove(mine)  # twice is no error


def test_the_script_and_what_the_filter_reads(daemon: Daemon, docker_image_name: str, tmp_path: Path) -> None:
    key = image_key(docker_image_name)
    command = [sys.executable, str(tiny_image.REPOSITORY / "scripts/release/list_branches.py"), "--docker"]
    out = tmp_path / "branches.json"
    subprocess.run([*command, "--image-name", key, "--out", str(out)], check=True)
    assert json.loads(out.read_text())["branches"] == [tiny_image.TASK]
    assert read_branches([out]) == {docker_image_name: frozenset({tiny_image.TASK})}
    done = subprocess.run(
        [*command, "--image-name", "acme/absent", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("error: the Docker daemon at ")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_daemon_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests run on where no daemon is."""
    with own_daemon("asked for") as own:
        assert own.host.startswith("unix:///") and own.api.images() == []
    assert not dataclasses.is_dataclass(own)
