"""A pod's own: what its containers survive, and that they go when they are told to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tiny_image
from plain_pod import PlainPod, PlainPods

from lightning_smith.images.daemon import Daemon
from lightning_smith.sandbox.bwrap import ResourceLimits, SandboxError
from lightning_smith.sandbox.container import ContainerWorkspace
from lightning_smith.sandbox.pod import GRADER, WORKBENCH

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

LIMITS = ResourceLimits()

LEAVE = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.shmget(4711, 4096, 0o1600) >= 0, libc.semget(4712, 1, 0o1600) >= 0, libc.msgget(4713, 0o1600) >= 0)
"""
LEFT = "ls -A /tmp /dev/shm /run/task; tail -qn +2 /proc/sysvipc/*"


def test_a_test_run_leaves_no_word_to_the_next(pods: PlainPods) -> None:
    """The volumes and the System V objects of a pod are those of the run before: the next executor clears them."""
    sandbox = pods.sandbox(LIMITS)
    image = sandbox.prepare(tiny_image.IMAGE_NAME)
    limits = {"environment": {}, "timeout_s": 60, "cpu_s": 60, "keep_bytes": 1000}
    with sandbox.test_tree(image, "main") as tree:
        before = tree.run(LEFT, **limits).output
        made = "mkdir -p /tmp/d/e; echo x > /tmp/d/e/f; chmod 000 /tmp/d; ln -s / /tmp/l; echo x > /dev/shm/f"
        assert tree.run(f"{made}; echo x > run; python -c '{LEAVE}'", **limits).output == b"True True True\n"
        assert len(tree.run(LEFT, **limits).output.splitlines()) == len(before.splitlines()) + 6
    with sandbox.test_tree(image, "main") as tree:
        assert tree.run(LEFT, **limits).output == before
        assert "run" not in tree.stamps()


def test_a_container_that_is_killed_is_the_machines_fault_and_comes_again(
    daemon: Daemon, pods: PlainPods, tmp_path: Path
) -> None:
    pod, sandbox = pods.pod(LIMITS), pods.sandbox(LIMITS)
    image = sandbox.prepare(tiny_image.IMAGE_NAME)
    with ContainerWorkspace(sandbox, image, tiny_image.TASK, tmp_path / "one") as workspace:
        daemon.api.kill(pod.container(WORKBENCH))
        with pytest.raises(
            SandboxError, match=r"ended by itself \(\S+/workbench/socket was its socket|went away"
        ):
            workspace.execute("echo x", 60)
    with ContainerWorkspace(sandbox, image, tiny_image.TASK, tmp_path / "two") as workspace:
        assert workspace.execute("echo x", 60).output == b"x\n"


def test_a_container_that_waits_ends_when_its_pod_does(daemon: Daemon, pods: PlainPods) -> None:
    """The first process of a container has no signal handlers by itself: its pod would wait out its grace period."""
    socket = pods.pod(LIMITS).folder / GRADER / "socket"
    deadline_s = time.monotonic() + 60
    while not socket.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    started_s = time.monotonic()
    daemon.api.stop(pods.pod(LIMITS).container(GRADER), timeout=30)
    assert time.monotonic() - started_s < 15


HARNESS = f"""
import os
from pathlib import Path
from lightning_smith.grading.store import GradeStore
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.verdict import decide
from lightning_smith.sandbox.rooms import open_room
from lightning_smith.contracts.task import RolloutTask

task = RolloutTask.from_row({tiny_image.row()!r})
room = open_room("pod", Path("/run/pod"))
image = room.image({tiny_image.IMAGE_NAME!r})
with room.workspace(image, task.instance_id, Path("/tmp/ws"), keep_bytes=1000) as workspace:
    print(workspace.execute({tiny_image.FIX!r}, 60).returncode)
    patch = workspace.diff()
print(decide(task, run_tests(task, image, patch, GradeStore(Path("/tmp/grades")), room.sandbox, timeout_s=60)))
print(os.getuid(), image.digest)
"""


def test_a_whole_pod(daemon: Daemon, docker_image_name: str) -> None:
    """The harness in a container as well, without any right: its repository is that of its own copy of the image."""
    pod = PlainPod(daemon, docker_image_name, LIMITS)
    try:
        said = pod.run_harness("-c", HARNESS)
    finally:
        pod.close()
    assert said.splitlines() == ["0", "solved", f"64999 {daemon.image(docker_image_name).id}"]
