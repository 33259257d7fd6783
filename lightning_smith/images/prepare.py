"""Preparing images: pulled, layered, proved, tagged, and a manifest written last.

    manifest = Preparation(daemon, puller, layer_of, Path("data/images")).prepare(image_name)

An image that its manifest describes is left alone. What counts is that the tags point to the image whose
id, a hash of its configuration and so of every layer, the manifest has.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json
from lightning_smith.core.provenance import write_manifest
from lightning_smith.core.tables import table_text
from lightning_smith.images.daemon import Daemon, DockerError, FoundImage
from lightning_smith.images.docker import DockerBranches, told_command
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.layered import add_layer, give_tags, tags
from lightning_smith.images.proof import agent_volume, fingerprint, probe, refuse_changes, refuse_layers
from lightning_smith.images.pull import Puller, StoppedError, image_at
from lightning_smith.images.push import Pusher
from lightning_smith.repositories.names import image_key
from lightning_smith.repositories.revisions import TEST_COMMAND

Manifest = dict[str, Any]


class Certifier(Protocol):
    """Who tests that an image grades its tasks as their data set says; usable from several threads."""

    def wanted(self, image_name: str) -> int:
        """Return how many tasks of an image are to be graded."""
        ...

    def certify(self, image: FoundImage, branches: Set[str]) -> list[dict[str, Any]]:
        """Return what became of each task. Raise UserError if that is not what it should be. `branches` are the
        image's tasks.
        """
        ...


@dataclass
class Preparation:
    """How images are prepared; `prepare` may be called from several threads."""

    daemon: Daemon
    puller: Puller
    layer_of: Callable[[], AgentLayer]
    """Builds the layer, or finds it built."""
    out: Path
    """Folder of the manifests, `<image key>.json`."""
    pusher: Pusher | None = None
    certifier: Certifier | None = None
    test_command: Sequence[str] = TEST_COMMAND[:3]
    """Of an image that does not say it itself."""
    _layers: list[tuple[AgentLayer, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, image_name: str, *, force: bool = False) -> Manifest:
        """Return the image's manifest, new or as it was; UserError says why there is none."""
        path = self.out / f"{image_key(image_name)}.json"
        pulled = self.puller.pull(image_name)
        base = pulled.found
        layer, volume = self._layer()
        known = None if force else self.known(path, base, layer)
        if known is not None:
            return known
        compressed_bytes = pulled.compressed_bytes or _pulled_before(path, base)
        path.unlink(missing_ok=True)
        branches = DockerBranches(self.daemon).list_branches(image_name)
        times = {"pull": pulled.wall_s}
        started = time.monotonic()
        image_id = add_layer(self.daemon, base, layer)
        times["layer"] = time.monotonic() - started
        started = time.monotonic()
        made = replace(base, id=image_id)
        refuse_layers(self.daemon, base.id, image_id, layer, tags(image_name, layer)[0])
        before = fingerprint(self.daemon, base, volume)
        after = probe(self.daemon, made, told_command(base) or self.test_command)
        refuse_changes(before, after.environment, base.name)
        if after.problems:
            raise UserError(
                f"the image {image_name} {', and '.join(after.problems)}: it cannot serve rollouts"
            )
        times["proof"] = time.monotonic() - started
        started = time.monotonic()
        certified = self._certify(made, branches.branches)
        times["certify"] = time.monotonic() - started
        moved = give_tags(self.daemon, image_id, image_name, layer)
        started = time.monotonic()
        pushed = self.pusher.push(image_id, image_name, layer) if self.pusher else None
        times["push"] = time.monotonic() - started
        manifest = {
            "image_name": image_name,
            "source": pulled.source,
            "base": {
                "id": base.id,
                "digest": base.digest,
                "bytes": _size(self.daemon, base.id),
                "compressed_bytes": compressed_bytes,
                "fetched_bytes": pulled.fetched_bytes,
            },
            "layer": {
                "diff_id": layer.diff_id,
                "bytes": layer.bytes,
                "family": layer.family,
                "python": layer.python,
                "packages": layer.packages,
            },
            "image": {"id": image_id, "tags": list(tags(image_name, layer)), "pushed": pushed},
            "agent": after.agent,
            "environment": after.environment,
            "branches": sorted(branches.branches),
            "certified": certified,
            "moved_tags": moved,
            "wall_s": {name: round(seconds, 2) for name, seconds in times.items()},
        }
        return write_manifest(path, manifest)

    def known(self, path: Path, base: FoundImage, layer: AgentLayer) -> Manifest | None:
        """Return the manifest at `path`, if it is of this base and layer and the daemon still has its image."""
        if not path.is_file():
            return None
        with contextlib.suppress(UserError, KeyError, TypeError):
            manifest = read_json(path)
            same = manifest["base"]["id"] == base.id and manifest["layer"]["diff_id"] == layer.diff_id
            pushed = (manifest["image"]["pushed"] or {}).get("repository")
            wanted = self.pusher.repository(manifest["image_name"]) if self.pusher else pushed
            enough = manifest["certified"]["wanted"] >= self._wanted(manifest["image_name"])
            if same and enough and pushed == wanted and self._has(manifest):
                return manifest
        return None

    def _wanted(self, image_name: str) -> int:
        return self.certifier.wanted(image_name) if self.certifier else 0

    def _certify(self, image: FoundImage, branches: Set[str]) -> dict[str, Any]:
        wanted = self._wanted(image.name)
        tasks = self.certifier.certify(image, branches) if self.certifier and wanted else []
        return {"wanted": wanted, "tasks": tasks}

    def _has(self, manifest: Manifest) -> bool:
        image = manifest["image"]
        return all(image_at(self.daemon, tag) == image["id"] for tag in image["tags"])

    def _layer(self) -> tuple[AgentLayer, str]:
        """Return the layer, and the volume that has it, which are made for the first image."""
        with self._lock:
            if not self._layers:
                layer = self.layer_of()
                self._layers.append((layer, agent_volume(self.daemon, layer)))
            return self._layers[0]


@dataclass(frozen=True)
class Outcome:
    """What became of several images."""

    manifests: Mapping[str, Manifest]
    """By image name."""
    failures: Mapping[str, str]
    """Reasons by image name."""


def prepare_all(
    names: Sequence[str],
    prepare: Callable[[str], Manifest],
    *,
    parallel: int,
    stop: threading.Event,
    report: Callable[[str, Manifest | None, str | None], None] = lambda name, manifest, reason: None,
    alive: Callable[[], object] = lambda: None,
) -> Outcome:
    """Prepare images side by side; one that fails does not stop the others, a daemon that is gone does.

    `alive` raises DockerError if the daemon does not answer. On Ctrl-C `stop` is set, what runs ends, and
    KeyboardInterrupt goes on.
    """
    manifests: dict[str, Manifest] = {}
    failures: dict[str, str] = {}
    gone: DockerError | None = None
    with ThreadPoolExecutor(parallel) as pool:
        jobs = {pool.submit(prepare, name): name for name in names}
        try:
            for job in as_completed(jobs):
                name = jobs[job]
                try:
                    manifests[name] = job.result()
                except StoppedError:
                    failures[name] = str(gone or "the run was interrupted")
                except UserError as error:
                    failures[name] = str(error)
                    if isinstance(error, DockerError) and gone is None:
                        try:
                            alive()
                        except DockerError as error:
                            gone = error
                            stop.set()
                            for other in jobs:
                                if other.cancel():
                                    failures[jobs[other]] = f"not begun: {error}"
                except BaseException:
                    if not job.cancelled():
                        raise
                report(name, manifests.get(name), failures.get(name))
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return Outcome(manifests, failures)


def read_manifest(path: Path) -> Manifest:
    """Return a manifest. Raise UserError if the file is none."""
    manifest = read_json(path)
    try:
        parts = [manifest[part] for part in ("base", "layer", "image")]
        whole = isinstance(manifest["image_name"], str) and all(isinstance(part, dict) for part in parts)
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(f"{path} is no manifest of an image: delete it and run the same command again")
    return manifest


def table(manifests: Iterable[Manifest]) -> str:
    """One tab-separated row an image, sorted by name: what each has, and how long it took."""
    columns = (
        "image", "digest", "base_id", "id", "tag", "pushed", "bytes", "fetched_bytes", "layer", "branches",
        "certified", "pull_s", "layer_s", "proof_s",
    )  # fmt: skip
    rows = []
    for m in sorted(manifests, key=lambda m: m["image_name"]):
        base, image, wall = m["base"], m["image"], m["wall_s"]
        pushed = f"{image['pushed']['repository']}@{image['pushed']['digest']}" if image["pushed"] else "-"
        row = (
            m["image_name"], base["digest"], base["id"], image["id"], image["tags"][1], pushed, base["bytes"],
            base["fetched_bytes"], m["layer"]["diff_id"], len(m["branches"]),
            len(m["certified"]["tasks"]), wall["pull"], wall["layer"], wall["proof"],
        )  # fmt: skip
        rows.append(row)
    return table_text(columns, rows)


def known_rows(manifests: Iterable[Manifest]) -> str:
    """Return rows for the table of required digests (`known.COLUMNS`), of images that were pulled by these
    manifests.
    """
    rows = sorted(
        (image_key(m["image_name"]), m["base"]["digest"], m["base"]["compressed_bytes"], m["base"]["bytes"])
        for m in manifests
        if m["base"]["compressed_bytes"]
    )
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def _pulled_before(path: Path, base: FoundImage) -> int:
    """Compressed bytes of a base that an earlier run pulled, by its manifest; 0 if it was at the daemon before."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        before = read_json(path)["base"]
        return int(before["compressed_bytes"]) if before["id"] == base.id else 0
    return 0


def _size(daemon: Daemon, image_id: str) -> int:
    with daemon.asked(f"inspect the image {image_id}"):
        return int(daemon.api.inspect_image(image_id)["Size"])
