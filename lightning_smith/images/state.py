"""Whether the daemon still has what manifests say, for a workflow that sees files alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_atomic

_AS_PREPARED = "as prepared\n"


class ImageStates:
    """A file for each image that gets new content when the daemon no longer has what the image's manifest says.

    Only `compare` looks, for targets about images: what was made with an image stays as it is if the image goes.
    The daemon is asked once; where none answers, nothing is known and nothing is written.
    """

    def __init__(self, folder: Path, manifests: Path) -> None:
        self._folder, self._manifests = folder, manifests
        self._tagged: dict[str, str] | None = None
        self._asked_ns = 0

    def file(self, key: str) -> str:
        """Path of an image's file, made if it is absent: no newer than a manifest that is there, as after a move."""
        path, manifest = self._folder / f"{key}.txt", self._manifests / f"{key}.json"
        if not path.exists():
            write_atomic(path, _AS_PREPARED)
            if manifest.is_file():
                before = manifest.stat().st_mtime_ns - 1_000_000_000
                os.utime(path, ns=(before, before))
        return str(path)

    def compare(self, keys: Iterable[str]) -> None:
        """Give new content to the files of images that the daemon lost or altered."""
        for key in keys:
            path, manifest = Path(self.file(key)), self._manifests / f"{key}.json"
            if manifest.is_file() and manifest.stat().st_mtime_ns > path.stat().st_mtime_ns:
                altered = self._altered(manifest)
                if altered:
                    now = time.strftime("%Y-%m-%d %H:%M:%S")
                    write_atomic(path, f"{now} {', '.join(altered)}: no longer as prepared\n")

    def _altered(self, manifest: Path) -> list[str]:
        if not self._asked_ns:
            self._asked_ns, self._tagged = time.time_ns(), _tagged()
        if self._tagged is None or manifest.stat().st_mtime_ns > self._asked_ns:
            return []
        try:
            image = read_json(manifest)["image"]
            return [tag for tag in image["tags"] if self._tagged.get(tag) != image["id"]]
        except (UserError, KeyError, TypeError):
            return [str(manifest)]


def _tagged() -> dict[str, str] | None:
    """Return ids by tag of all images of the daemon, in one question; None if none answers."""
    from lightning_smith.images.daemon import connect  # slow to import, and most plans need no daemon

    try:
        with connect() as daemon, daemon.asked("list images"):
            return {tag: image["Id"] for image in daemon.api.images() for tag in image["RepoTags"] or ()}
    except UserError:
        return None


def failures_text(folder: Path) -> str:
    """Return what `prepare_image` left in `folder` of images that failed; empty if nothing did."""
    reasons = {path.stem: path.read_text().strip() for path in sorted(folder.glob("*.txt"))}
    if not reasons:
        return ""
    lines = "".join(f"\n  {key}: {reason}" for key, reason in reasons.items())
    return (
        f"{len(reasons)} images could not be prepared:{lines}\n"
        "run the same command again to try just these, or leave them out with images.only\n"
    )
