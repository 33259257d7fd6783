"""Pushing prepared images to the registry that a cluster's nodes pull from."""

from __future__ import annotations

from docker.errors import APIError

from lightning_smith.core.errors import UserError
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.layered import TAG, tags
from lightning_smith.images.pull import Retries
from lightning_smith.images.registry import HUB, Registries, RegistryError
from lightning_smith.images.transport import distrust
from lightning_smith.repositories.names import ImageRef


class Pusher:
    """Pushes images below one prefix (`host[:port][/path]`); usable from several threads.

    Raise RegistryError or TrustError if the registry cannot be reached, before there is anything to push.
    """

    def __init__(self, daemon: Daemon, registries: Registries, prefix: str, retries: Retries) -> None:
        self._daemon, self._registries, self._retries = daemon, registries, retries
        self._prefix = prefix.rstrip("/")
        retries.run(self._prefix, lambda _: registries.reach(f"{self._prefix}/x"))

    def repository(self, image_name: str) -> str:
        """Return where an image goes: the prefix and its own path, in which another host than Docker Hub is a
        folder.
        """
        ref = ImageRef.parse(image_name)
        host, path = ref.host or HUB, ref.repository.removeprefix(f"{ref.host}/")
        folder = "" if host == HUB else f"{host.lower().replace(':', '-')}/"
        return f"{self._prefix}/{folder}{path}"

    def push(self, image_id: str, image_name: str, layer: AgentLayer) -> dict[str, str]:
        """Push under both tags; returns `repository` and `digest`, as the registry then has them."""
        repository = self.repository(image_name)
        own = [ImageRef.parse(name).tag or TAG for name in tags(image_name, layer)]
        for tag in reversed(own):  # the tag that everything asks for comes last
            self._retries.run(repository, lambda _, tag=tag: self._push(image_id, repository, tag))
        found = self._retries.run(repository, lambda _: self._registries.about(f"{repository}:{own[0]}"))
        with self._daemon.asked(f"inspect the image {image_id}"):
            digests = self._daemon.api.inspect_image(image_id).get("RepoDigests") or ()
        if f"{repository}@{found.digest}" not in digests:
            raise UserError(
                f"{repository}:{own[0]} has the digest {found.digest}, which is not what was pushed: something else "
                "pushes there too, or the registry did not keep it"
            )
        return {"repository": repository, "digest": found.digest}

    def _push(self, image_id: str, repository: str, tag: str) -> None:
        with self._daemon.asked(f"push {repository}:{tag}"):
            self._daemon.api.tag(image_id, repository, tag)
            login = self._registries.credentials(repository) or {"username": "", "password": ""}
            try:
                stream = self._daemon.api.push(
                    repository,
                    tag,
                    stream=True,
                    decode=True,
                    auth_config=login,
                )
                errors = [event["error"] for event in stream if "error" in event]
            except APIError as error:
                errors = [str(error.explanation or error)]
        if errors:
            raise _refusal(repository, errors[0])


def _refusal(repository: str, text: str) -> UserError:
    lower = text.lower()
    if refusal := distrust(ImageRef.parse(repository).host or HUB, text):
        return refusal
    if any(word in lower for word in ("denied", "unauthorized", "no basic auth", "authentication required")):
        host = ImageRef.parse(repository).host or ""
        return UserError(f"there is no right to push to {repository}: log in (docker login {host})")
    status = 429 if "toomanyrequests" in lower or "429" in lower else None
    return RegistryError(f"Docker failed to push to {repository}: {text}", status=status)
