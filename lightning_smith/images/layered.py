"""An image with the agent layer on top: the base's own layers, and one that is the same in every image.

    image_id = add_layer(daemon, daemon.image(image_name), layer)

Daemons that keep their layers themselves (overlay2) are given a configuration that names the base's layers and the
agent's, and the bytes of the latter alone: nothing of the base is read or written, nothing runs, and the daemon checks
the bytes against the hash. Daemons that store images with containerd take no such archive: there the image is built by
`COPY --from`. The same base and the same layer always give the same image.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterable
from typing import IO, Any

from lightning_smith.core.errors import UserError
from lightning_smith.images.daemon import LABEL, Daemon, DockerError, FoundImage
from lightning_smith.images.layer import PREFIX, AgentLayer
from lightning_smith.images.pull import image_at
from lightning_smith.repositories.names import ImageRef

LAYER_LABEL = f"{LABEL}.layer"
"""Label of an image that was made here; its value is the layer's hash."""

BASE_LABEL = f"{LABEL}.base"
"""Label with the id of the image below it."""

TAG = "openai"
"""The tag that the published example gives its images."""

_LONGEST_VERSION = 100
"""Of the 128 characters that a tag may have."""
_EPOCH = "1970-01-01T00:00:00Z"
_CONTAINERD = "io.containerd.snapshotter.v1"


def tags(image_name: str, layer: AgentLayer) -> tuple[str, str]:
    """Return the tag that everything asks for, and the one that never names other content.

    Those of `acme/x:v1` are `acme/x:openai-v1` and `acme/x:openai-v1-<layer>`: `acme/x:openai` is another image's.
    """
    ref = ImageRef.parse(image_name)
    version = ref.version.replace(":", "-")
    if len(version) > _LONGEST_VERSION:
        version = hashlib.sha256(version.encode()).hexdigest()
    moving = f"{ref.repository}:{TAG}-{version}" if version else f"{ref.repository}:{TAG}"
    return moving, f"{moving}-{layer.short}"


def add_layer(daemon: Daemon, base: FoundImage, layer: AgentLayer) -> str:
    """Make the image, without a tag, and return its id. Raise DockerError if it could not be made."""
    ensure_stage(daemon, layer)
    about = _inspect(daemon, base.id)
    labels = {
        **((about["Config"] or {}).get("Labels") or {}),
        LAYER_LABEL: layer.diff_id,
        BASE_LABEL: base.id,
    }
    if stored_by_containerd(daemon):
        return _build(daemon, base, layer, labels)
    created = about.get("Created") or _EPOCH
    diff_ids = about["RootFS"].get("Layers") or []
    config = {
        "architecture": about["Architecture"],
        "os": about["Os"],
        "created": created,
        "config": {**(about["Config"] or {}), "Labels": labels, "Image": base.id},
        "rootfs": {"type": "layers", "diff_ids": [*diff_ids, layer.diff_id]},
        "history": [
            *(
                {"created": created, "created_by": f"layer {n} of {base.name}"}
                for n in range(1, len(diff_ids) + 1)
            ),
            {"created": created, "created_by": f"lightning-smith: {PREFIX}"},
        ],
    }
    return _load(daemon, config, layer, f"add the agent layer to {base.name}")


def ensure_stage(daemon: Daemon, layer: AgentLayer) -> str:
    """Id of the image that is the agent layer alone, loaded if the daemon lacks it or it is another's."""
    found = image_at(daemon, layer.stage)
    if found is not None and _inspect(daemon, found)["RootFS"].get("Layers") == [layer.diff_id]:
        return found
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": _EPOCH,
        "config": {"Labels": {LAYER_LABEL: layer.diff_id}, "Cmd": [f"{PREFIX}/bin/python3"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created": _EPOCH, "created_by": f"lightning-smith: {PREFIX}"}],
    }
    image_id = _load(daemon, config, layer, "load the agent layer")
    repository, _, tag = layer.stage.partition(":")
    with daemon.asked(f"tag {layer.stage}"):
        daemon.api.tag(image_id, repository, tag)
    return image_id


def give_tags(daemon: Daemon, image_id: str, image_name: str, layer: AgentLayer) -> list[str]:
    """Make both tags name the image; returns sentences for those that named another one before."""
    moved = []
    for name in tags(image_name, layer):
        before = image_at(daemon, name)
        if before != image_id:
            repository, _, tag = name.rpartition(":")
            with daemon.asked(f"tag {name}"):
                daemon.api.tag(image_id, repository, tag)
            if before is not None:
                moved.append(f"{name} named {before} and now names {image_id}")
    return moved


def _inspect(daemon: Daemon, image: str) -> dict[str, Any]:
    with daemon.asked(f"inspect the image {image}"):
        return daemon.api.inspect_image(image)


def stored_by_containerd(daemon: Daemon) -> bool:
    """Return whether the daemon keeps its images in containerd, the default of Docker Engine 29."""
    with daemon.asked("describe itself"):
        return any(_CONTAINERD in map(str, row) for row in daemon.api.info().get("DriverStatus") or ())


def _load(daemon: Daemon, config: dict[str, Any], layer: AgentLayer, what: str) -> str:
    raw = json.dumps(config, sort_keys=True).encode()
    image_id = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    below = len(config["rootfs"]["diff_ids"]) - 1
    names = [*(f"present-{n}/layer.tar" for n in range(below)), "agent/layer.tar"]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode()
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive, layer.tar.open("rb") as tar:
            _add(archive, "config.json", io.BytesIO(raw), len(raw))
            _add(archive, "manifest.json", io.BytesIO(manifest), len(manifest))
            _add(archive, "agent/layer.tar", tar, layer.bytes)
        file.seek(0)
        with daemon.asked(what):
            _refuse_errors(daemon.api.load_image(file), what)
    if image_at(daemon, image_id) is None:
        raise DockerError(f"Docker said that it loaded an image and has none ({what}): see the daemon's log")
    return image_id


def _build(daemon: Daemon, base: FoundImage, layer: AgentLayer, labels: dict[str, str]) -> str:
    lines = [f"FROM {base.name}", f"COPY --from={layer.stage} {PREFIX} {PREFIX}"]
    dockerfile = "\n".join(lines).encode()
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            _add(archive, "Dockerfile", io.BytesIO(dockerfile), len(dockerfile))
        file.seek(0)
        what = f"add the agent layer to {base.name}"
        with daemon.asked(what):
            stream = daemon.api.build(
                fileobj=file,
                custom_context=True,
                labels=labels,
                decode=True,
                rm=True,
                forcerm=True,
                network_mode="none",
                use_config_proxy=False,
            )
            ids = [
                event["aux"]["ID"] for event in _refuse_errors(stream, what) if "ID" in event.get("aux", {})
            ]
    if not ids:
        raise DockerError(f"Docker built no image ({what}): see the daemon's log")
    return ids[-1]


def _refuse_errors(stream: Iterable[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    events = list(stream)
    for event in events:
        if text := event.get("error"):
            if "no space left on device" in text:
                raise UserError(
                    f"the disk of the Docker daemon is full ({what}): free some space (docker system df)"
                )
            raise DockerError(f"Docker failed to {what}: {text}")
    return events


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, file)
