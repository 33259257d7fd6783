"""Daemons that cannot serve: absent, too old, another storage driver, a disk that fills."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker_image
import pytest
import tiny_image
from docker_daemon import Proxy, own_daemon

from lightning_smith.core.errors import UserError
from lightning_smith.images.daemon import Daemon, DockerError, connect
from lightning_smith.images.layer import AgentLayer, write_tar
from lightning_smith.images.layered import add_layer, tags
from lightning_smith.images.preflight import Plan, check_daemon, check_space
from lightning_smith.images.prepare import prepare_all
from lightning_smith.images.pull import image_at

pytestmark = pytest.mark.e2e

NOBODY = 65534
ROOT = tiny_image.REPOSITORY
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


def script(dataset: Path, out: Path, host: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/images/pull_images.py", "--dataset", str(dataset), "--out", str(out)]
    environment = {**os.environ, "DOCKER_HOST": host}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_no_daemon(tmp_path: Path) -> None:
    dataset = tiny_image.write_tasks(tmp_path / "tasks.jsonl", tiny_image.row())
    done = script(dataset, tmp_path / "images", f"unix://{tmp_path}/none")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        done.stderr.startswith("error: no Docker daemon answers at unix://")
        and "set DOCKER_HOST" in done.stderr
    )
    assert not (tmp_path / "images").exists()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's rights: the kernel looks at the effective ids and the groups."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@needs_root
def test_no_right_to_use_the_daemon(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        proxy = Proxy(Path(folder) / "socket")
        (Path(folder) / "socket").chmod(0o600)
        monkeypatch.setenv("DOCKER_HOST", proxy.host)
        connect().close()
        with as_nobody(), pytest.raises(DockerError) as caught:
            connect()
        proxy.close()
    assert str(caught.value) == (
        f"this user may not use the Docker daemon at {proxy.host}: join the group docker (sudo usermod -aG docker "
        "$USER, then log in again), or set DOCKER_HOST to a daemon of your own"
    )


def test_a_daemon_that_is_too_old(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """This daemon, held against a newer requirement than any has."""
    assert check_daemon(daemon)["root"]
    monkeypatch.setattr("lightning_smith.images.preflight.MIN_API", (9, 9))
    with pytest.raises(UserError, match=r"is too old \(.*, API 1\.\d+\): it needs API 9\.9"):
        check_daemon(daemon)


@needs_root
def test_a_daemon_that_stores_every_image_whole() -> None:
    with (
        own_daemon("asked for", "--storage-driver", "vfs") as daemon,
        pytest.raises(UserError, match=r"stores images with vfs, .*--storage-driver overlay2"),
    ):
        check_daemon(daemon)


def test_what_does_not_fit_is_refused_before_it_is_pulled(daemon: Daemon, tmp_path: Path) -> None:
    root = Path(check_daemon(daemon)["root"])
    if not daemon.host.startswith("unix://") or not root.is_dir():
        pytest.skip("the daemon's disk is not of this machine")
    assert "GB free in" in check_space(daemon, Plan(1, {}, {}, 0, 0), root)
    with pytest.raises(
        UserError, match=r"GB free, and 0 missing images take about 1000000\.0 GB: free \d+\.\d GB"
    ):
        check_space(daemon, Plan(1, {}, {}, 0, 10**15), root)
    assert "not known" in check_space(daemon, Plan(1, {}, {}, 0, 10**15), tmp_path / "elsewhere")


@contextmanager
def small_disk(folder: Path, mb: int) -> Iterator[Path]:
    """A file system of its own on a loop device."""
    image, mount = folder / "disk", folder / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(mb << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=False).returncode:
        pytest.skip("needs mkfs.ext4 (apt-get install e2fsprogs)")
    if subprocess.run(
        ["mount", "-o", "loop", str(image), str(mount)], check=False, capture_output=True
    ).returncode:
        pytest.skip("needs loop devices")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=False)


@needs_root
def test_the_disk_fills_in_the_middle(tmp_path: Path) -> None:
    """The image that no longer fits fails with a sentence, the tag stays off it, and the others are whole."""
    (tmp_path / "root/opt/agent").mkdir(parents=True)
    (tmp_path / "root/opt/agent/bulk").write_bytes(os.urandom(12 << 20))
    layer = AgentLayer(
        tmp_path / "layer.tar", write_tar(tmp_path / "root", tmp_path / "layer.tar"), "glibc", "3", {}, ""
    )
    with small_disk(tmp_path, 64) as disk, own_daemon("asked for", "--data-root", str(disk)) as daemon:
        names = []
        for word in ("a", "b", "c", "d", "e"):
            tree = docker_image.Tree()
            tree.text("etc/word", word)
            names.append(docker_image.import_image(daemon, tree, f"acme/{word}"))

        def prepare(name: str) -> dict[str, str]:
            return {"image": add_layer(daemon, daemon.image(name), layer)}

        outcome = prepare_all(names, prepare, parallel=1, stop=threading.Event())
        assert outcome.manifests and outcome.failures
        for reason in outcome.failures.values():
            assert "disk of the Docker daemon is full" in reason or "no space left on device" in reason
        for made in outcome.manifests.values():
            assert image_at(daemon, str(made["image"]))
        assert all(image_at(daemon, tag) is None for name in names for tag in tags(name, layer))
