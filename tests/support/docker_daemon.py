"""A Docker daemon for the tests: the one that is there, else one of this session's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_smith.images.daemon import Daemon, DockerError, connect

REQUIRED_VARIABLE = "LS_TEST_DOCKER"
"""Set to `required`, tests that find no daemon fail instead of being skipped."""


@contextmanager
def docker_daemon() -> Iterator[Daemon]:
    """DOCKER_HOST or the default socket if one answers, else Debian's dockerd, started here and stopped at the end."""
    try:
        daemon = connect()
    except DockerError as error:
        with own_daemon(str(error)) as daemon:
            yield daemon
        return
    with daemon:
        yield daemon


@contextmanager
def own_daemon(why: str, *options: str, before: tuple[str, ...] = ()) -> Iterator[Daemon]:
    """dockerd with its files and its socket in a folder of its own, without any network.

    `before` are the words of a program that starts it, such as `taskset`.
    """
    if shutil.which("dockerd") is None or os.getuid() != 0:
        give_up(
            f"{why}; root can have the tests start one where dockerd is installed (apt-get install docker.io)"
        )
    folder = Path(tempfile.mkdtemp(prefix="lightning-smith-docker-"))
    command = [*before, "dockerd", "--host", f"unix://{folder}/socket", "--pidfile", f"{folder}/pid"]
    command += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/run"]
    command += ["--bridge", "none", "--iptables=false", "--ip6tables=false", *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    host = os.environ.get("DOCKER_HOST")
    try:
        os.environ["DOCKER_HOST"] = f"unix://{folder}/socket"
        with _await(process, folder / "log") as daemon:
            yield daemon
    finally:
        if host is None:
            del os.environ["DOCKER_HOST"]
        else:
            os.environ["DOCKER_HOST"] = host
        process.terminate()
        process.wait(60)
        subprocess.run(
            ["umount", "--quiet", "--recursive", str(folder / "data")], check=False, capture_output=True
        )
        shutil.rmtree(folder, ignore_errors=True)


def _await(process: subprocess.Popen[bytes], log: Path) -> Daemon:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            return connect()
        except DockerError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                lines = log.read_text(errors="replace").strip().splitlines()
                give_up(
                    f"{error}, and dockerd does not start here ({lines[-1] if lines else 'no word in its log'})"
                )
            time.sleep(0.1)


def give_up(reason: str) -> None:
    if os.environ.get(REQUIRED_VARIABLE) == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Proxy:
    """A socket before the daemon's that can fall silent, as a busy daemon does."""

    def __init__(self, socket_path: Path) -> None:
        self.host = f"unix://{socket_path}"
        self._daemon = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        self._silent = threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(socket_path))
        self._server.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """From now on nothing that the daemon says gets through."""
        self._silent.set()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(self._daemon)
            for source, target, silenced in ((client, upstream, False), (upstream, client, True)):
                threading.Thread(target=self._relay, args=(source, target, silenced), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, silenced: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not (silenced and self._silent.is_set()):
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
