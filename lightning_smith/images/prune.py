"""What preparation has made at a Docker daemon, and removing it.

    found = find_made(daemon, manifests)
    removed, kept = remove_made(daemon, found)

Only what is known to be ours is named: tags that still name the image of their manifest, the agent layer's own image
and volume, and containers with our label whose process has ended. An image that others use, or have a tag of their own
on, stays. Nothing is removed by force, nor any image that was not named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound

from lightning_smith.images.daemon import LABEL, Daemon
from lightning_smith.images.layered import BASE_LABEL, LAYER_LABEL, TAG
from lightning_smith.images.pull import image_at
from lightning_smith.repositories.names import ImageRef

_CONFLICT = 409
_OWN_TAG = re.compile(rf"{TAG}-")
_STAGES = f"{LABEL}/agent:"


class Bases(StrEnum):
    """Which of the images below the agent layer go as well."""

    NONE = "none"
    PULLED = "pulled"
    """Those that preparation has pulled."""
    ALL = "all"


@dataclass(frozen=True)
class Made:
    """What can be removed."""

    images: Mapping[str, tuple[str, ...]]
    """References by image id; none of an image that has no tag."""
    containers: Mapping[str, str]
    """Names by id."""
    volumes: tuple[str, ...]
    freed_bytes: int
    """At most: of layers that no other image has. Layers that share their files count as if they did not."""

    def lines(self) -> Iterator[str]:
        """For a person, one thing a line."""
        yield from (f"container {name}" for name in self.containers.values())
        for image, references in self.images.items():
            yield f"image {', '.join(references) or f'{image} (no tag)'}"
        yield from (f"volume {name}" for name in self.volumes)

    def __bool__(self) -> bool:
        return bool(self.images or self.containers or self.volumes)


def find_made(
    daemon: Daemon,
    manifests: Iterable[Mapping[str, Any]],
    *,
    bases: Bases = Bases.NONE,
    leftovers: bool = False,
) -> Made:
    """Return what the manifests name. With `leftovers`, also images of ours that none of them names.

    Such are of an earlier layer, did not stand their proof, or belong to the manifests of another folder.
    """
    manifests = list(manifests)
    listed = _listed(daemon)
    images: dict[str, list[str]] = {}
    for manifest in manifests:
        for reference, image in _references(manifest, bases):
            if listed.named.get(reference) == image:
                images.setdefault(image, []).append(reference)
    diff_ids = {manifest["layer"]["diff_id"] for manifest in manifests}
    if leftovers:
        images = {image: listed.own_references(image) for image in listed.ours} | images
        diff_ids |= {row["Labels"][LAYER_LABEL] for row in listed.rows.values() if _is_stage(row)}
    gone = {image for image in images if set(listed.references(image)) <= set(images[image])}
    needed = {
        row["Labels"].get(LAYER_LABEL)
        for image, row in listed.rows.items()
        if image not in gone and not _is_stage(row)
    }
    stages = [
        (image, row)
        for image, row in listed.rows.items()
        if _is_stage(row) and row["Labels"][LAYER_LABEL] in diff_ids - needed
    ]
    for image, row in stages:
        images[image] = [tag for tag in row["RepoTags"] if tag.startswith(_STAGES)]
        gone.add(image)
    with daemon.asked("list volumes"):
        volumes = daemon.api.volumes(filters={"label": LAYER_LABEL})["Volumes"] or []
    return Made(
        {image: tuple(dict.fromkeys(references)) for image, references in images.items()},
        daemon.left(),
        tuple(v["Name"] for v in volumes if v["Labels"][LAYER_LABEL] in diff_ids - needed),
        _freed_bytes(daemon, listed.rows, gone),
    )


def remove_made(daemon: Daemon, made: Made) -> tuple[list[str], list[str]]:
    """Remove it; returns lines of what is gone and of what was kept, with the reason."""
    removed, kept = [], []
    for container, name in made.containers.items():
        daemon.remove(container)
        removed.append(f"container {name}")
    with daemon.asked("list containers"):
        used = {row["ImageID"]: row["Names"][0].lstrip("/") for row in daemon.api.containers(all=True)}
    for image, references in made.images.items():
        name = ", ".join(references) or image
        if image in used:
            kept.append(f"image {name}: the container {used[image]} is of it")
            continue
        for reference in references or (image,):
            if image_at(daemon, reference) == image:  # not if it has moved since
                _remove_image(daemon, reference)
        if image_at(daemon, image) is None:
            removed.append(f"image {name}")
        else:
            kept.append(f"image {name}: others have a tag on it or made images of it; ours are off")
    for name in made.volumes:
        with daemon.asked(f"remove the volume {name}"):
            try:
                daemon.api.remove_volume(name)
                removed.append(f"volume {name}")
            except NotFound:
                pass
            except APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                kept.append(f"volume {name}: a container has it")
    return removed, kept


@dataclass(frozen=True)
class _Listed:
    rows: Mapping[str, dict[str, Any]]
    """The daemon's images by id."""
    named: Mapping[str, str]
    """Ids by tag and by digest reference."""
    ours: tuple[str, ...]
    """Ids of images whose labels say that they were made here, and which are what these say."""

    def references(self, image: str) -> Iterator[str]:
        return (name for name, found in self.named.items() if found == image)

    def own_references(self, image: str) -> list[str]:
        """Without the tags that somebody else has put on it."""
        parsed = {name: ImageRef.parse(name) for name in self.references(image)}
        ending = f"-{self.rows[image]['Labels'][LAYER_LABEL].removeprefix('sha256:')[:12]}"
        fixed = {
            name for name, ref in parsed.items() if _OWN_TAG.match(ref.tag or "") and name.endswith(ending)
        }
        moving = {name.removesuffix(ending) for name in fixed} & parsed.keys()
        own = {n: ref.repository for n, ref in parsed.items() if n in fixed | moving or ref.tag == TAG}
        digests = [n for n, ref in parsed.items() if ref.digest and ref.repository in own.values()]
        return [*own, *digests]


def _listed(daemon: Daemon) -> _Listed:
    with daemon.asked("list images"):
        rows = {row["Id"]: {**row, "Labels": row["Labels"] or {}} for row in daemon.api.images(all=True)}
    named = {
        name: image
        for image, row in rows.items()
        for name in (*(row["RepoTags"] or ()), *(row["RepoDigests"] or ()))
        if "<none>" not in name
    }
    ours = tuple(
        image for image, row in rows.items() if BASE_LABEL in row["Labels"] and _is_ours(daemon, image)
    )
    return _Listed(rows, named, ours)


def _is_ours(daemon: Daemon, image: str) -> bool:
    """Images that others made of ours inherit the labels; theirs are of another image, or have more layers."""
    with daemon.asked(f"inspect the image {image}"):
        try:
            about = daemon.api.inspect_image(image)
        except ImageNotFound:
            return False
    config = about["Config"]
    last = (about["RootFS"].get("Layers") or [None])[-1]
    return config.get("Image") == config["Labels"][BASE_LABEL] and last == config["Labels"][LAYER_LABEL]


def _is_stage(row: Mapping[str, Any]) -> bool:
    own = any(tag.startswith(_STAGES) for tag in row["RepoTags"] or ())
    return own and LAYER_LABEL in row["Labels"] and BASE_LABEL not in row["Labels"]


def _references(manifest: Mapping[str, Any], bases: Bases) -> Iterator[tuple[str, str]]:
    """Pairs of a reference that preparation has made and the id that it was to name."""
    image, base = manifest["image"], manifest["base"]
    for tag in image["tags"]:
        yield tag, image["id"]
        if image["pushed"]:
            repository = image["pushed"]["repository"]
            yield f"{repository}:{tag.rpartition(':')[2]}", image["id"]
    if image["pushed"]:
        yield f"{image['pushed']['repository']}@{image['pushed']['digest']}", image["id"]
    if bases is Bases.ALL or (bases is Bases.PULLED and base["compressed_bytes"]):
        ref = ImageRef.parse(manifest["image_name"])
        if ref.tag is not None:
            yield f"{ref.repository}:{ref.tag}", base["id"]
        for repository in (ref.repository, ImageRef.parse(manifest["source"]).repository):
            yield f"{repository}@{base['digest']}", base["id"]


def _remove_image(daemon: Daemon, reference: str) -> None:
    with daemon.asked(f"remove {reference}"):
        try:
            daemon.api.remove_image(reference, noprune=True)
        except ImageNotFound:
            return
        except APIError as error:
            if error.status_code != _CONFLICT:
                raise


def _freed_bytes(daemon: Daemon, rows: Mapping[str, Mapping[str, Any]], gone: Iterable[str]) -> int:
    """Bytes of the layers that only images of `gone` have."""
    gone = set(gone)
    kept = {key for image in rows if image not in gone for key, _ in _layers(daemon, rows, image)}
    found = dict(layer for image in gone for layer in _layers(daemon, rows, image))
    return sum(size for key, size in found.items() if key not in kept)


def _layers(daemon: Daemon, rows: Mapping[str, Mapping[str, Any]], image: str) -> Sequence[tuple[str, int]]:
    """Return a key and the bytes of each layer that holds any: two images share those whose keys are equal.

    The daemon says no sizes of layers but in an image's history; layers are shared with all that lies below them.
    """
    below = rows[image]["Labels"].get(BASE_LABEL)
    if below in rows and below != image:
        base = _layers(daemon, rows, below)
        size = rows[image]["Size"] - rows[below]["Size"]
        return [*base, (f"{base[-1][0] if base else ''} {rows[image]['Labels'].get(LAYER_LABEL)}", size)]
    with daemon.asked(f"read the history of {image}"):
        try:
            history = daemon.api.history(image)
        except ImageNotFound:
            return []
    layers, key = [], hashlib.sha256()
    for row in reversed(history):
        if row["Size"]:
            key.update(f"{row['Created']} {row['CreatedBy']} {row['Size']}\n".encode())
            layers.append((key.hexdigest(), row["Size"]))
    return layers
