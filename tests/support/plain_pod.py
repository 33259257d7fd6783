"""Pods made of plain containers of a Docker daemon, as `lightning_smith/sandbox/pod.py` asks for them.

Workbench and grader are containers that a thread, in the kubelet's place, makes anew whenever their executor ends. The
harness is the test itself, with a clone for its copy of the image, or a container as well (`run_harness`).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from docker.errors import APIError
from docker.types import Ulimit

import lightning_smith
from lightning_smith.images.daemon import Daemon, DockerError
from lightning_smith.images.layer import PYTHON
from lightning_smith.images.layered import LAYER_LABEL
from lightning_smith.sandbox import executor
from lightning_smith.sandbox.bwrap import ResourceLimits
from lightning_smith.sandbox.pod import GRADER, SOCKET, WORKBENCH, PodSandbox, prepare
from lightning_smith.sandbox.scratch import remove_tree

LABEL = "lightning-smith-pod"
"""Tells containers of pods, which come and go on their own, from those that a test makes."""

PACKAGE = Path(lightning_smith.__file__).parent

ROOM = "/run/room"
"""Where a container sees its part of the pod's folder."""


class PlainPod:
    """One pod; usable until `close`. It runs `tag`, by default the image of the tasks' own name."""

    def __init__(
        self, daemon: Daemon, image_name: str, limits: ResourceLimits, tag: str | None = None
    ) -> None:
        self._daemon, self._image, self._limits = daemon, daemon.image(tag or image_name), limits
        self._has_layer = LAYER_LABEL in self._image.labels
        self.folder = Path(tempfile.mkdtemp(prefix="ls-pod-"))
        prepare(self.folder, image_name, self._image.id)
        self._volumes = Path(tempfile.mkdtemp(prefix="ls-volumes-"))
        for name in ("tmp", "shm"):
            (self._volumes / name).mkdir()
            (self._volumes / name).chmod(0o1777)
        self._ended = threading.Event()
        self._namespaces = self._create_namespaces()
        self._containers: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(role,), daemon=True) for role in (WORKBENCH, GRADER)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def image_id(self) -> str:
        return self._image.id

    def close(self) -> None:
        self._ended.set()
        for container in list(self._containers.values()):
            self._daemon.remove(container)
        for thread in self._threads:
            thread.join(60)
        self._daemon.remove(self._namespaces)
        for folder in (self.folder, self._volumes):
            remove_tree(folder)

    def container(self, role: str) -> str:
        """Id of the container that is there now, or will be in a moment."""
        while role not in self._containers:
            time.sleep(0.02)
        return self._containers[role]

    def run_harness(self, *arguments: str, binds: Sequence[str] = ()) -> str:
        """Run Python in the pod's third container, which has this package and sees the folder at /run/pod.

        Without the agent layer the package is this checkout's, without what it needs of other packages.
        """
        own = [] if self._has_layer else [f"{PACKAGE}:/opt/agent/lib/lightning_smith:ro"]
        settings = self._daemon.api.create_host_config(
            network_mode=f"container:{self._namespaces}",
            ipc_mode=f"container:{self._namespaces}",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            tmpfs={"/tmp": "mode=1777", "/dev/shm": "mode=1777"},
            binds=[f"{self.folder}:/run/pod", *own, *binds],
        )
        container = self._daemon.create(
            image=self._image.id,
            entrypoint=[PYTHON] if self._has_layer else ["/opt/miniconda3/bin/python", "-B"],
            command=list(arguments),
            environment={} if self._has_layer else {"PYTHONPATH": "/opt/agent/lib"},
            host_config=settings,
            user=f"{executor.OWN_USER}:{executor.OWN_USER}",
            labels={LABEL: "harness"},
        )
        try:
            self._daemon.api.start(container)
            self._daemon.api.wait(container)
            return self._daemon.api.logs(container).decode()
        finally:
            self._daemon.remove(container)

    def _keep(self, role: str) -> None:
        while not self._ended.is_set():
            container = self._containers[role] = self._create(role)
            try:
                if not self._ended.is_set():
                    self._daemon.api.start(container)
                    self._daemon.api.wait(container, timeout=None)
            except APIError:
                if not self._ended.is_set():
                    raise
            finally:
                try:
                    self._daemon.remove(container)
                except DockerError:
                    if not self._ended.is_set():
                        raise

    def _create_namespaces(self) -> str:
        """What a pod's containers have in common: host name, network and System V objects."""
        settings = self._daemon.api.create_host_config(network_mode="none", ipc_mode="shareable", init=True)
        container = self._daemon.create(
            image=self._image.id,
            command=["sleep", "infinity"],
            host_config=settings,
            hostname="testbed",
            labels={LABEL: "pause"},
        )
        self._daemon.api.start(container)
        return container

    def _create(self, role: str) -> str:
        memory = f"{self._limits.memory_mb}m"
        tmp = f"mode=1777,size={self._limits.tmp_mb}m"
        volumes = {
            "/tmp": f"exec,{tmp}",
            "/dev/shm": tmp,
            str(Path(executor.SCRIPT).parent): "mode=1777,size=64m",
        }
        binds = [f"{self.folder / role}:{ROOM}"]
        start = [PYTHON, "-I", "-m", executor.__name__]
        if not self._has_layer:
            binds.append(f"{executor.__file__}:/opt/agent/executor.py:ro")
            start = ["/opt/miniconda3/bin/python", "-I", "-S", "/opt/agent/executor.py"]
        if role == GRADER:  # a pod's volumes stay when a container is started again; here they have no size
            binds += [f"{self._volumes / 'tmp'}:/tmp", f"{self._volumes / 'shm'}:/dev/shm"]
            del volumes["/tmp"], volumes["/dev/shm"]
        settings = self._daemon.api.create_host_config(
            network_mode=f"container:{self._namespaces}",
            ipc_mode=f"container:{self._namespaces}",
            cap_drop=["ALL"],
            cap_add=["KILL", "SETGID", "SETPCAP", "SETUID"],
            security_opt=["no-new-privileges"],
            pids_limit=self._limits.processes + 1,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=2_000_000_000,
            tmpfs=volumes,
            ulimits=[Ulimit(name="core", soft=0, hard=0)],
            binds=binds,
        )
        return self._daemon.create(
            image=self._image.id,
            entrypoint=start,
            command=["--listen", f"{ROOM}/{SOCKET}", self._image.user],
            host_config=settings,
            user="0:0",
            labels={LABEL: role},
        )


class PlainPods:
    """Pods of one image, one for each set of limits; context manager."""

    def __init__(self, daemon: Daemon, image_name: str, root: Path) -> None:
        self._daemon, self._image_name, self._root = daemon, image_name, root
        self._pods: dict[tuple[int, ...], PlainPod] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self._pods.values():
            pod.close()

    def pod(self, limits: ResourceLimits) -> PlainPod:
        """The pod with these limits."""
        key = limits.processes, limits.memory_mb, limits.tmp_mb
        if key not in self._pods:
            self._pods[key] = PlainPod(self._daemon, self._image_name, limits)
        return self._pods[key]

    def sandbox(self, limits: ResourceLimits) -> PodSandbox:
        """The harness's view of it."""
        return PodSandbox.find(self.pod(limits).folder, self._root, limits)
