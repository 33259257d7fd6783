"""Pulling images: with retries that heed the registry, limits by size, and the digest that is required.

    with connect(STALL_S) as daemon, Registries(insecure=daemon.insecure_hosts()) as registries:
        pulled = Puller(daemon, registries, known).pull("swebench/swesmith.x86_64.pypi_1776_boltons.d39cfd15")

The registry is asked first: what it says of limits (429, Retry-After) does not reach a daemon's client, and an
image for another platform is refused before it is fetched. The daemon then pulls the digest that was described.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docker.errors import APIError, ImageNotFound

from lightning_smith.core.errors import UserError
from lightning_smith.images.daemon import Daemon, DockerError, FoundImage
from lightning_smith.images.known import KnownImage
from lightning_smith.images.pull_progress import PullProgress
from lightning_smith.images.registry import (
    HUB,
    PLATFORM,
    AbsentError,
    Registries,
    RegistryError,
    RemoteImage,
    through_mirror,
)
from lightning_smith.images.transport import distrust
from lightning_smith.repositories.names import ORGANISATIONS, ImageRef, any_spelling, image_key, sources

STALL_S = 600
"""How long the daemon may be silent while it pulls: the check of a large layer says nothing."""

_FULL = "no space left on device"


class StoppedError(UserError):
    """The run was interrupted."""


@dataclass(frozen=True)
class PullSettings:
    """How images are pulled."""

    organisations: Sequence[str] = ORGANISATIONS
    """Where an image is looked for if its own name is not there."""
    mirror: str | None = None
    """Host, port and prefix under which Docker Hub's images are looked for first."""
    tries: int = 6
    first_wait_s: float = 5.0
    """Wait before the second try; it doubles with each, and a fifth more or less is drawn."""
    max_wait_s: float = 3600.0
    """A registry that asks for a longer wait fails the image."""
    allowance_s: float = 600.0
    """Time that a pull of any size has."""
    min_bytes_per_s: float = 500_000.0
    """Rate that adds to it: a pull may take `allowance_s + compressed bytes / min_bytes_per_s`."""


@dataclass(frozen=True)
class Pulled:
    """An image that the daemon has, under the name that was asked for."""

    image_name: str
    source: str
    """Repository that it was pulled from; its name if it was there already."""
    found: FoundImage
    compressed_bytes: int
    """Compressed size of its layers; 0 if it was there already."""
    fetched_bytes: int
    """What the daemon downloaded: layers that it had do not count."""
    wall_s: float


class Retries:
    """Tries again what a registry refused for now; usable from several threads, which heed each other's 429."""

    def __init__(self, settings: PullSettings, progress: PullProgress, stop: threading.Event) -> None:
        self._settings, self._progress, self.stop = settings, progress, stop
        self._not_before_s = 0.0

    def run[T](self, what: str, attempt: Callable[[int], T]) -> T:
        """Call `attempt` with 1, 2, … until it raises no passing RegistryError; UserError after the last try."""
        wait_s = self._settings.first_wait_s
        for number in range(1, self._settings.tries + 1):
            self._wait(self._not_before_s - time.monotonic())
            try:
                return attempt(number)
            except RegistryError as error:
                if not error.passing:
                    raise
                pause_s = max(error.retry_after_s or 0.0, wait_s * random.uniform(0.8, 1.2))
                if number == self._settings.tries or pause_s > self._settings.max_wait_s:
                    times = "time" if number == 1 else "times"
                    asked = f", and asks to wait {error.retry_after_s:.0f} s" if error.retry_after_s else ""
                    raise UserError(f"{error} (tried {number} {times}{asked})") from None
                if error.status == 429:  # it counts for all images of this machine
                    self._not_before_s = max(self._not_before_s, time.monotonic() + pause_s)
                self._progress.note(f"{what}: {error}; next try in {pause_s:.0f} s")
                self._wait(pause_s)
                wait_s *= 2
        raise AssertionError("the last try returns or raises")

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(max(0.0, seconds)):
            raise StoppedError("the run was interrupted while it waited for a registry")


class Puller:
    """Pulls images into a daemon; usable from several threads."""

    def __init__(
        self,
        daemon: Daemon,
        registries: Registries,
        known: Mapping[str, KnownImage] | None = None,
        settings: PullSettings | None = None,
        progress: PullProgress | None = None,
        stop: threading.Event | None = None,
        planned: Mapping[str, RemoteImage] | None = None,
    ) -> None:
        self._daemon, self._registries = daemon, registries
        self._known, self._settings = known or {}, settings or PullSettings()
        self._progress = progress or PullProgress()
        self.retries = Retries(self._settings, self._progress, stop or threading.Event())
        self.planned = planned or {}

    def present(self, image_name: str) -> FoundImage | None:
        """Return the image, if the daemon has it under this name or another spelling, with the required digest."""
        for name in dict.fromkeys((image_name, any_spelling(image_name))):
            try:
                found = self._daemon.image(name)
            except DockerError as error:
                if "has no image" not in str(error):
                    raise
                continue
            known = self._known.get(image_key(image_name))
            if known is None or known.digest in self._digests(found):
                return found
        return None

    def pull(self, image_name: str) -> Pulled:
        """Make the daemon have the image under `image_name`; UserError says why it could not."""
        started = time.monotonic()
        found = self.present(image_name)
        if found is not None:
            self._check_platform(found)
            named = self._name(found.id, image_name)
            return Pulled(image_name, found.name, named, 0, 0, time.monotonic() - started)
        remote, fetched = self.retries.run(image_name, lambda number: self._try(image_name, number))
        # By digest, so that a tag which moved meanwhile does not matter.
        about = self._daemon.image(f"{remote.repository}@{remote.digest}")
        self._check_platform(about)
        named = self._name(about.id, image_name)
        wall_s = time.monotonic() - started
        self._progress.finished(image_name, fetched, wall_s)
        return Pulled(image_name, remote.repository, named, remote.compressed_bytes, fetched, wall_s)

    def _try(self, image_name: str, number: int) -> tuple[RemoteImage, int]:
        planned = self.planned.get(image_key(image_name)) if number == 1 else None
        remote = planned or self._find(image_name)
        return remote, self._fetch(image_name, remote)

    def describe(self, image_name: str) -> RemoteImage | None:
        """Return what the registry says of an image that the daemon lacks; None for one that it has."""
        if self.present(image_name):
            return None
        planned = self.planned.get(image_key(image_name))
        return planned or self.retries.run(image_name, lambda _: self._find(image_name))

    def _find(self, image_name: str) -> RemoteImage:
        """Return the first of an image's sources that a registry has, with the required digest."""
        candidates = self._candidates(image_name)
        known = self._known.get(image_key(image_name))
        refusal: AbsentError | None = None
        others: list[str] = []
        for name in candidates:
            try:
                remote = self._registries.about(name)
            except AbsentError as error:
                refusal = refusal or error
                continue
            if known is None or known.digest in (remote.digest, remote.manifest_digest):
                return remote
            try:  # the tag has moved on, the content may still be there
                return self._registries.about(f"{ImageRef.parse(name).repository}@{known.digest}")
            except AbsentError:
                others.append(f"{remote.repository} has {remote.digest}")
        if others:
            raise UserError(
                f"{image_name} must have the digest {known.digest if known else ''}, and {'; '.join(others)}: correct "
                "its row in assets/images/images.tsv if the new content is wanted"
            )
        if len(candidates) > 1 and refusal is not None:
            raise AbsentError(f"{refusal}; looked for {', '.join(candidates)}", status=refusal.status)
        assert refusal is not None
        raise refusal

    def _candidates(self, image_name: str) -> list[str]:
        """Return where an image may be: every name at the mirror, then at the names' own registries."""
        names = sources(image_name, self._settings.organisations)
        return list(dict.fromkeys([*(through_mirror(name, self._settings.mirror) for name in names), *names]))

    def _fetch(self, image_name: str, remote: RemoteImage) -> int:
        """Have the daemon pull; returns the bytes that it downloaded."""
        limit_s = self._settings.allowance_s + remote.compressed_bytes / self._settings.min_bytes_per_s
        deadline_s = time.monotonic() + limit_s
        layers: dict[str, int] = {}
        with self._daemon.asked(f"pull {image_name}"):
            try:
                stream = self._daemon.api.pull(
                    remote.repository,
                    tag=remote.digest,
                    stream=True,
                    decode=True,
                    platform="/".join(PLATFORM),
                    auth_config=self._registries.credentials(remote.repository),
                )
            except APIError as error:
                raise _pull_error(image_name, remote, str(error.explanation or error)) from None
            try:
                for event in stream:
                    if "error" in event:
                        raise _pull_error(image_name, remote, str(event["error"]))
                    _count(layers, event)
                    self._progress.layers(image_name, remote.compressed_bytes, layers, event)
                    if self.retries.stop.is_set():
                        raise StoppedError(f"the pull of {image_name} was interrupted")
                    if time.monotonic() > deadline_s:
                        raise UserError(
                            f"the pull of {image_name} ({remote.compressed_bytes / 1e9:.1f} GB) took longer than "
                            f"{limit_s:.0f} s: check the network, or lower images.min_mb_per_s"
                        )
            finally:
                stream.close()
                self._progress.left(image_name)
        return sum(layers.values())

    def _digests(self, found: FoundImage) -> set[str]:
        with self._daemon.asked(f"inspect the image {found.name}"):
            about = self._daemon.api.inspect_image(found.id)
        return {text.partition("@")[2] for text in about.get("RepoDigests") or ()}

    def _check_platform(self, found: FoundImage) -> None:
        with self._daemon.asked(f"inspect the image {found.name}"):
            about = self._daemon.api.inspect_image(found.id)
        if (about["Os"], about["Architecture"]) != PLATFORM:
            raise UserError(
                f"the image {found.name} is for {about['Os']}/{about['Architecture']}, not for {'/'.join(PLATFORM)}: "
                f"remove it (docker rmi {found.name}) and ask for one that is"
            )

    def _name(self, image_id: str, image_name: str) -> FoundImage:
        """Tag an image with the name that was asked for, and say so if that tag named another image."""
        ref = ImageRef.parse(image_name)
        if ref.tag is not None:
            with self._daemon.asked(f"tag {image_name}"):
                tagged = f"{ref.repository}:{ref.tag}"
                before = image_at(self._daemon, tagged)
                if before is not None and before != image_id:
                    self._progress.note(f"{tagged} named {before} and now names {image_id}")
                if before != image_id:
                    self._daemon.api.tag(image_id, ref.repository, ref.tag)
        return self._daemon.image(image_name)


def image_at(daemon: Daemon, name: str) -> str | None:
    """Id of the image that exactly this reference names, None if there is none."""
    with daemon.asked(f"inspect the image {name}"):
        try:
            return daemon.api.inspect_image(name)["Id"]
        except ImageNotFound:
            return None


def _count(layers: dict[str, int], event: Mapping[str, Any]) -> None:
    """Keep what has been downloaded of each layer, in bytes."""
    detail = event.get("progressDetail") or {}
    if event.get("status") == "Downloading" and "current" in detail:
        layers[event["id"]] = max(layers.get(event["id"], 0), int(detail["current"]))
    elif event.get("status") == "Extracting" and event["id"] in layers and detail.get("total"):
        layers[event["id"]] = max(layers[event["id"]], int(detail["total"]))


def _pull_error(image_name: str, remote: RemoteImage, text: str) -> UserError:
    """Return what the daemon says of a failed pull, sorted by whether another try can help."""
    sentence = f"Docker failed to pull {image_name} from {remote.repository}: {text}"
    lower = text.lower()
    if refusal := distrust(ImageRef.parse(remote.repository).host or HUB, text):
        return refusal
    if _FULL in lower:
        return UserError(
            f"the disk of the Docker daemon is full (pull of {image_name}): free some space (docker system df)"
        )
    if "toomanyrequests" in lower or "429" in lower:
        return RegistryError(sentence, status=429)
    if "unauthorized" in lower or "denied" in lower:
        return AbsentError(f"{sentence}: log in (docker login)", status=401)
    if "manifest unknown" in lower or "not found" in lower:
        return AbsentError(sentence, status=404)
    return RegistryError(sentence)
