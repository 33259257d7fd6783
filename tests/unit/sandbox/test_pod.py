"""What the harness of a pod says when its containers are not what they should be; `test_workspaces.py` has the rest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from swe_smith_rows import make_row

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json, write_jsonl
from lightning_smith.grading import pod_tasks
from lightning_smith.sandbox.bwrap import SandboxError
from lightning_smith.sandbox.pod import GRADER, SOCKET, WORKBENCH, PodImage, PodSandbox
from lightning_smith.sandbox.rooms import open_room

IMAGE = "swesmith/swesmith.x86_64.pypi_1776_widget.0badcafe"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A pod's folder, short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ls-") as folder:
        for name in ("image", WORKBENCH, GRADER):
            (Path(folder) / name).mkdir()
        write_json(Path(folder) / "image/image.json", {"image_name": IMAGE, "digest": "sha256:0"})
        yield Path(folder)


def sandbox(folder: Path, root: Path, wait_s: float = 0.1) -> tuple[PodSandbox, PodImage]:
    return PodSandbox(folder, root, wait_s=wait_s), PodImage(IMAGE, "sha256:0", folder / "image")


def listener(folder: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / WORKBENCH / SOCKET))
    listening.listen()
    return listening


def test_a_folder_that_is_no_pods(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no folder of a pod.*image\.json"):
        open_room("pod", tmp_path)


def test_a_folder_whose_sockets_would_have_too_long_a_path(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    (long / "image").mkdir(parents=True)
    write_json(long / "image/image.json", {})
    with pytest.raises(UserError, match="is too long for sockets, whose paths have at most 107 bytes"):
        PodSandbox.find(long)


def test_another_image_and_one_without_a_repository(folder: Path, tmp_path: Path) -> None:
    room = PodSandbox.find(folder, tmp_path)
    with pytest.raises(UserError, match=r"run swesmith/\S+widget.0badcafe, and not swesmith/other"):
        room.prepare("swesmith/other")
    with pytest.raises(UserError, match="has no /testbed"):
        room.prepare(IMAGE)


def test_a_pod_that_was_given_the_tag_that_runs(folder: Path, tmp_path: Path) -> None:
    """It is told what to give, whether rollouts or certification find out."""
    write_json(folder / "image/image.json", {"image_name": f"{IMAGE}:openai", "digest": "sha256:0"})
    remedy = "give pod.prepare the image_name of the pod's tasks, not the tag that runs"
    with pytest.raises(UserError, match=remedy):
        PodSandbox.find(folder, tmp_path).prepare(IMAGE)
    write_jsonl(tmp_path / "tasks.jsonl", [make_row(1, image_name=IMAGE)])
    words = ["--pod", str(folder), "--tasks", str(tmp_path / "tasks.jsonl"), "--log", str(tmp_path / "log")]
    with pytest.raises(
        UserError, match=rf"this pod's image, {IMAGE}:openai: give other --tasks, or {remedy}"
    ):
        pod_tasks.main(words)


def test_an_executor_that_does_not_come(folder: Path, tmp_path: Path) -> None:
    room, image = sandbox(folder, tmp_path)
    with pytest.raises(SandboxError, match=r"no executor listened at \S+/workbench/socket within 0 s"):
        room.workbench(image)
    listener(folder).close()  # its socket is left
    with pytest.raises(SandboxError, match=r"no executor listened at \S+/workbench/socket within 0 s"):
        room.workbench(image)


def test_somebody_else_took_the_connection(folder: Path, tmp_path: Path) -> None:
    """As an executor does, the listener serves who came first and goes: the harness does not wait for ever."""
    room, image = sandbox(folder, tmp_path, wait_s=0.5)
    with listener(folder) as listening, socket.socket(socket.AF_UNIX) as thief:
        thief.connect(str(folder / WORKBENCH / SOCKET))
        with listening.accept()[0]:
            (folder / WORKBENCH / SOCKET).unlink()
            listening.close()
            with pytest.raises(SandboxError, match="something else took the one connection"):
                room.workbench(image)


def test_somebody_else_answers(folder: Path, tmp_path: Path) -> None:
    room, image = sandbox(folder, tmp_path)
    with listener(folder) as listening:
        accepting = threading.Thread(target=listening.accept)
        accepting.start()
        with pytest.raises(
            SandboxError, match=rf"user {os.getuid()} answers at .*not the executor's \(64999\)"
        ):
            room.workbench(image)
        accepting.join()


def test_a_socket_that_the_harness_may_not_use(folder: Path, tmp_path: Path) -> None:
    room, image = sandbox(folder, tmp_path)
    user = os.geteuid()
    with listener(folder):
        (folder / WORKBENCH / SOCKET).chmod(0)
        try:
            if user == 0:  # whom no mode keeps out
                os.seteuid(65534)
            with pytest.raises(SandboxError, match="the harness must run as user 64999"):
                room.workbench(image)
        finally:
            os.seteuid(user)


def test_a_pod_needs_no_docker() -> None:
    """The harness in an image has no client of a daemon."""
    script = "import sys; sys.modules['docker'] = None; from lightning_smith.sandbox import pod, rooms"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
