"""The Docker daemon: one client for all that talks to it, and its failures as sentences.

    with connect() as daemon:
        image = daemon.image("swebench/swesmith.x86_64.pypi_1776_boltons.d39cfd15")

DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH count as for the `docker` command.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from lightning_smith.core.closing import Closing
from lightning_smith.core.errors import UserError
from lightning_smith.core.process import process_stat
from lightning_smith.images.insecure import InsecureHosts
from lightning_smith.repositories.names import ImageRef, bare_name, spellings

ANSWER_TIMEOUT_S = 120
"""How long a call may take that does not wait for anything of a task."""

LABEL = "lightning-smith"
"""Label of every container that is made here; its value tells by which process: `<host>/<pid>/<start>`."""

_CONFLICT = 409
_DEFAULT_HOST = "unix:///var/run/docker.sock"


class DockerError(UserError):
    """The daemon did not do what it was asked; says nothing about the task."""


@dataclass(frozen=True)
class FoundImage:
    """An image that the daemon has."""

    name: str
    """The name under which it was found."""
    id: str
    """`sha256:<hex>` of its configuration, which names its content."""
    digest: str
    """`sha256:<hex>` that pulls it from its repository; its id if it was never pulled or pushed."""
    environment: dict[str, str]
    user: str
    labels: dict[str, str]


class Daemon(Closing):
    """A Docker daemon; a context manager, usable from several threads, and from processes forked later on."""

    def __init__(self, host: str, timeout_s: int) -> None:
        self.host, self._timeout_s = host, timeout_s
        self._client: docker.DockerClient | None = None
        self._pid = -1

    @property
    def api(self) -> Any:
        """docker-py's low-level client of this process: two that share a connection would mix their answers."""
        if self._client is None or self._pid != os.getpid():
            self._client = docker.from_env(timeout=self._timeout_s, version="auto", max_pool_size=128)
            self._pid = os.getpid()
        return self._client.api

    def close(self) -> None:
        if self._client is not None and self._pid == os.getpid():
            self._client.close()
        self._client = None

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Turn whatever goes wrong inside into a DockerError that says what was asked for."""
        try:
            yield
        except (requests.exceptions.Timeout, TimeoutError, urllib3.exceptions.TimeoutError):
            raise DockerError(
                f"Docker did not answer within {self._timeout_s} s ({what}): see the daemon's log, "
                "or run less at once"
            ) from None
        except APIError as error:
            raise DockerError(f"Docker failed to {what}: {error.explanation or error}") from None
        except (
            DockerException,
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            raise DockerError(f"the Docker daemon at {self.host} went away ({what}): {error}") from None

    def insecure_hosts(self) -> InsecureHosts:
        """Registries that the daemon may ask over HTTP."""
        with self.asked("describe itself"):
            return InsecureHosts(self.api.info())

    def image(self, image_name: str) -> FoundImage:
        """Return the image of a name, or of a key alone (`names.spellings`). Raise DockerError with the command that
        pulls it.
        """
        candidates = spellings(image_name)
        for name in candidates:
            with self.asked(f"inspect the image {name}"):
                try:
                    about = self.api.inspect_image(name)
                except ImageNotFound:
                    continue
            return _found(name, about)
        raise DockerError(
            f"the Docker daemon at {self.host} has no image {image_name}: pull it (docker pull {candidates[0]})"
        )

    def create(self, **settings: Any) -> str:
        """Create a container, not started, that has our label and a name of its own; returns its id.

        Its environment has nothing of this user's Docker configuration, whose proxies may hold passwords.
        """
        labels = {LABEL: _owner(os.getpid()), **settings.pop("labels", {})}
        settings.setdefault("command", ["none"])
        with self.asked(f"create a container of {settings['image']}"):
            name = f"{LABEL}-{uuid.uuid4().hex}"
            created = self.api.create_container(name=name, labels=labels, use_config_proxy=False, **settings)
            return str(created["Id"])

    def remove(self, container: str) -> None:
        """Remove a container with what runs in it; one that is gone is no error."""
        with self.asked("remove a container"):
            try:
                self.api.remove_container(container, force=True, v=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != _CONFLICT:  # its removal is under way
                    raise

    def sweep(self) -> list[str]:
        """Remove the containers of `left`; returns their names."""
        left = self.left()
        for container in left:
            self.remove(container)
        return list(left.values())

    def left(self) -> dict[str, str]:
        """Return names by id of the containers that processes of this machine left that have ended.

        Only containers with our label are looked at, and of these only the ones of dead processes of this host.
        """
        left = {}
        with self.asked("list containers"):
            found = self.api.containers(all=True, filters={"label": LABEL})
        for container in found:
            host, _, rest = container["Labels"][LABEL].rpartition("/")[0].rpartition("/")
            if host == socket.gethostname() and _owner(rest) != container["Labels"][LABEL]:
                left[container["Id"]] = container["Names"][0].lstrip("/")
        return left


def _owner(pid: int | str) -> str:
    stat = process_stat(int(pid)) if str(pid).isdigit() else None
    return f"{socket.gethostname()}/{pid}/{stat.start_ticks if stat else 'ended'}"


def _found(name: str, about: dict[str, Any]) -> FoundImage:
    config = about.get("Config") or {}
    repository = ImageRef.parse(name).repository
    digests = [text.partition("@") for text in about.get("RepoDigests") or ()]
    # An image from a mirror has the digest of its own repository under the mirror's name.
    alike = [digest for own, _, digest in digests if bare_name(own) == bare_name(name)]
    digest = next((digest for own, _, digest in digests if own == repository), [*alike, about["Id"]][0])
    variables = (text.partition("=") for text in config.get("Env") or ())
    return FoundImage(
        name,
        about["Id"],
        digest,
        {key: value for key, _, value in variables},
        config.get("User") or "",
        config.get("Labels") or {},
    )


def connect(timeout_s: int = ANSWER_TIMEOUT_S) -> Daemon:
    """Return the daemon that DOCKER_HOST names, else the one of this machine. Raise DockerError if none answers."""
    host = os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
    daemon = Daemon(host, timeout_s)
    try:
        daemon.api.ping()
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        if "Permission denied" in str(error):
            raise DockerError(
                f"this user may not use the Docker daemon at {host}: join the group docker (sudo usermod -aG docker "
                "$USER, then log in again), or set DOCKER_HOST to a daemon of your own"
            ) from None
        raise DockerError(
            f"no Docker daemon answers at {host}: start one (sudo systemctl start docker), or set DOCKER_HOST"
        ) from None
    return daemon
