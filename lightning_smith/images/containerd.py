"""Prepared images in the containerd of nodes that neither share the Docker daemon nor pull from a registry.

    node = Node("ssh node1 sudo ctr -n k8s.io")
    rows = import_images(daemon, node, manifests)

`docker save` is streamed into `ctr images import`, whatever stands before `ctr`. What counts afterwards is containerd's
own content: the image must be whole and unpacked, and name the configuration whose hash the manifest has as its id.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.pull import PullSettings, image_at
from lightning_smith.repositories.names import ImageRef

_ANSWER_S = 600.0
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
COLUMNS = ("node", "image", "reference", "digest", "id")


class Node:
    """A containerd, spoken to by a command line that ends in `ctr` and its namespace.

    What it says is an error of its own: one sentence with the last line of the command's.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._words = shlex.split(command)

    def images(self, *references: str) -> dict[str, str]:
        """Digests by reference of the images that are whole and unpacked; of all, or of these references."""
        found: dict[str, str] = {}
        listed = self.run("images", "check", *(f"name=={name}" for name in references))
        for line in listed.decode().splitlines()[1:]:
            words = line.split()
            if "complete" in words and words[-1] == "true":
                found[words[0]] = next(word for word in words if word.startswith("sha256:"))
        return found

    def has(self, digest: str, image_id: str) -> bool:
        """Return whether the image of a digest is the one of an id: its manifest's configuration, or itself."""
        if digest == image_id:
            return True
        about = self._content(digest)
        if about.get("mediaType") in _INDEXES:
            return any(self.has(part["digest"], image_id) for part in about["manifests"])
        return (about.get("config") or {}).get("digest") == image_id

    def load(self, archive: Iterable[bytes], timeout_s: float) -> None:
        """Import what `docker save` gives."""
        self.run("images", "import", "-", archive=archive, timeout_s=timeout_s)

    def tag(self, reference: str, other: str) -> None:
        self.run("images", "tag", "--force", reference, other)

    def run(
        self, *arguments: str, archive: Iterable[bytes] | None = None, timeout_s: float = _ANSWER_S
    ) -> bytes:
        """Return what `ctr` prints; it reads `archive`, if given, and is ended after `timeout_s`."""
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    [*self._words, *arguments],
                    stdin=subprocess.PIPE if archive is not None else subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                )
            except OSError as error:
                raise UserError(
                    f"{self._words[0]} does not start ({error.strerror}): correct images.import_into"
                ) from None
            late = threading.Event()
            timer = threading.Timer(timeout_s, lambda: (late.set(), process.kill()))
            timer.start()
            try:
                if archive is not None and process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it says itself why
                        for part in archive:
                            pipe.write(part)
                process.wait()
            finally:
                timer.cancel()
                process.kill()
                process.wait()
            if late.is_set():
                raise UserError(
                    f"`{self.command}` was ended after {timeout_s:.0f} s: see whether the node answers"
                )
            if process.returncode != 0:
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines()
                last = lines[-1] if lines else f"exit code {process.returncode}"
                raise UserError(f"`{self.command} {' '.join(arguments[:2])}` failed: {last}")
            output.seek(0)
            return output.read()

    def _content(self, digest: str) -> Mapping[str, Any]:
        try:
            about = json.loads(self.run("content", "get", digest))
        except ValueError:
            return {}
        return about if isinstance(about, dict) else {}


@dataclass(frozen=True)
class Imported:
    """What became of the images of one node."""

    rows: Sequence[tuple[str, ...]]
    """As in COLUMNS, one an image that is there."""
    failures: Mapping[str, str]
    """Reasons by image name."""


def import_images(
    daemon: Daemon,
    node: Node,
    manifests: Iterable[Mapping[str, Any]],
    *,
    min_bytes_per_s: float = PullSettings.min_bytes_per_s,
    report: Callable[[str], None] = lambda text: None,
) -> Imported:
    """Make a node have every image under both its tags, fetching only what it lacks; one that fails stops no other.

    Raise UserError if the node does not answer. `report` gets a sentence for each image that was imported.
    """
    present = node.images()
    rows: list[tuple[str, ...]] = []
    failures: dict[str, str] = {}
    for manifest in manifests:
        name, image_id = manifest["image_name"], manifest["image"]["id"]
        moving, own = (reference(tag) for tag in manifest["image"]["tags"])
        try:
            if own not in present or not node.has(present[own], image_id):
                _import(daemon, node, manifest, min_bytes_per_s)
                present |= {own: ""} | node.images(own)
                if not present[own] or not node.has(present[own], image_id):
                    raise UserError(
                        f"containerd has {present[own] or 'nothing whole'} as {own} after the import, which is not "
                        f"{image_id}: see its log"
                    )
                report(f"{name}: imported as {own}")
            if present.get(moving) != present[own]:
                node.tag(own, moving)
            rows.append((node.command, name, own, present[own], image_id))
        except UserError as error:
            failures[name] = str(error)
    return Imported(rows, failures)


def reference(tag: str) -> str:
    """Return a tag as containerd calls it: with its host, Docker Hub's included."""
    ref = ImageRef.parse(tag)
    if ref.host is not None:
        return tag
    return f"docker.io/{tag}" if "/" in ref.repository else f"docker.io/library/{tag}"


def _import(daemon: Daemon, node: Node, manifest: Mapping[str, Any], min_bytes_per_s: float) -> None:
    tag, image_id = manifest["image"]["tags"][1], manifest["image"]["id"]
    if image_at(daemon, tag) != image_id:
        raise UserError(
            f"the Docker daemon has another {tag} than the manifest, or none: prepare the image again"
        )
    size = manifest["base"]["bytes"] + manifest["layer"]["bytes"]
    with daemon.asked(f"save {tag}"):
        archive = daemon.api.get_image(tag)
        node.load(archive, PullSettings.allowance_s + size / min_bytes_per_s)
