"""Proof that an image with the agent layer works and has left the repository's own environment as it was.

    before = fingerprint(daemon, base, agent_volume(daemon, layer))
    after = probe(daemon, image, test_command)
    refuse_changes(before, after.environment, image_name)

Everything runs in containers without network, on a read-only file system, by /opt/agent's own Python. The base has no
such Python: it is mounted there, from a volume that the stage image fills once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError

from lightning_smith.core.entry_points import AGENT
from lightning_smith.core.errors import UserError
from lightning_smith.images import probe_inside
from lightning_smith.images.daemon import LABEL, Daemon, DockerError, FoundImage
from lightning_smith.images.layer import PREFIX, PYTHON, AgentLayer
from lightning_smith.images.layered import LAYER_LABEL, ensure_stage, stored_by_containerd

Environment = Mapping[str, Mapping[str, Any]]
"""By folder of packages: `files` (number), `packages` (versions by name), `entries` (sha256 by top-level name)."""

_WAIT_S = 1800
_NAMED = 8
_NO_FILE = "no such file or directory"


@dataclass(frozen=True)
class Probe:
    """What an image said of itself."""

    environment: Environment
    agent: dict[str, str]
    """Versions: `python`, `openai`."""
    problems: list[str]
    """What it lacks, as clauses that follow its name."""


def fingerprint(daemon: Daemon, base: FoundImage, volume: str) -> Environment:
    """Return the environment of an image that need not have /opt/agent; `volume` is `agent_volume`'s."""
    binds = {volume: {"bind": PREFIX, "mode": "ro"}}
    return _run(daemon, base, {"checks": False}, binds)["environment"]


def probe(daemon: Daemon, image: FoundImage, test_command: Sequence[str]) -> Probe:
    """Start /opt/agent in an image and have it look around."""
    request = {"checks": True, "test_command": list(test_command), "user": image.user, "agent": AGENT}
    answer = _run(daemon, image, request, {})
    return Probe(answer["environment"], answer["agent"], answer["problems"])


def refuse_layers(daemon: Daemon, base_id: str, image_id: str, layer: AgentLayer, name: str) -> None:
    """UserError unless the image's layers are its base's, unchanged, and the agent's.

    A daemon that builds the layer packs the same files in its own way: there it has to be one layer.
    """
    with daemon.asked(f"inspect the image {name}"):
        below, layers = (
            daemon.api.inspect_image(image)["RootFS"].get("Layers") or [] for image in (base_id, image_id)
        )
    on_top = layers[len(below) :]
    same = on_top == [layer.diff_id] or (len(on_top) == 1 and stored_by_containerd(daemon))
    if layers[: len(below)] != below or not same:
        raise UserError(
            f"the image {name} is not its base and one layer, so it was made another way: remove its tag "
            f"(docker rmi {name})"
        )


def refuse_changes(before: Environment, after: Environment, name: str) -> None:
    """UserError that names the packages and files in which two environments differ."""
    changes: list[str] = []
    for folder in sorted({*before, *after}):
        old, new = before.get(folder), after.get(folder)
        if old is None or new is None:
            changes.append(f"{folder} {'is new' if old is None else 'is gone'}")
            continue
        for package in sorted({*old["packages"], *new["packages"]}):
            was, now = old["packages"].get(package), new["packages"].get(package)
            if was != now:
                changes.append(f"{package} {was or 'absent'} → {now or 'absent'}")
        if old["packages"] == new["packages"]:
            entries = {*old["entries"], *new["entries"]}
            changed = sorted(e for e in entries if old["entries"].get(e) != new["entries"].get(e))
            changes += [f"{folder}/{entry} differs" for entry in changed]
    if changes:
        more = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
        raise UserError(
            f"the environment of {name} is not the one that its repository was published with: "
            f"{', '.join(changes[:_NAMED])}{more}; remove the image and run the same command again"
        )


def agent_volume(daemon: Daemon, layer: AgentLayer) -> str:
    """Name of a volume with the content of the layer, made if it is not there."""
    name = f"{LABEL}-{layer.family}-{layer.short}"
    stage = ensure_stage(daemon, layer)
    with daemon.asked(f"make the volume {name}"):
        daemon.api.create_volume(name, labels={LAYER_LABEL: layer.diff_id})
    # An empty volume is filled from the image when a container with it is made.
    host_config = daemon.api.create_host_config(binds={name: {"bind": PREFIX, "mode": "rw"}})
    daemon.remove(daemon.create(image=stage, host_config=host_config, volumes=[PREFIX]))
    return name


def _run(
    daemon: Daemon, image: FoundImage, request: dict[str, Any], binds: dict[str, dict[str, str]]
) -> dict[str, Any]:
    source = Path(probe_inside.__file__).read_text()
    container = daemon.create(
        image=image.id,
        entrypoint=[PYTHON],
        command=["-I", "-c", source, json.dumps(request)],
        user="0:0",
        working_dir="/",
        network_disabled=True,
        volumes=[spec["bind"] for spec in binds.values()],
        host_config=daemon.api.create_host_config(
            binds=binds,
            network_mode="none",
            read_only=True,
            tmpfs={"/tmp": ""},
            cap_drop=["ALL"],
            cap_add=["DAC_READ_SEARCH"],
        ),
    )
    try:
        with daemon.asked(f"start {PYTHON} in {image.name}"):
            try:
                daemon.api.start(container)
                code = daemon.api.wait(container, timeout=_WAIT_S)["StatusCode"]
                out = daemon.api.logs(container, stdout=True, stderr=False)
                err = daemon.api.logs(container, stdout=False, stderr=True)
            except APIError as error:
                if _NO_FILE not in str(error):
                    raise
                code, err = -1, _NO_FILE.encode()
    finally:
        daemon.remove(container)
    if code != 0 and _NO_FILE in err.decode("utf-8", "replace"):  # of the program loader
        raise UserError(f"{PYTHON} does not start in the image {image.name}: it has no C library that fits")
    if code != 0:
        last = (err.decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"])[-1]
        raise DockerError(f"{PYTHON} does not run in the image {image.name}: {last}")
    return json.loads(out)
