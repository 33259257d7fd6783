"""What pulling would take, and whether the daemon can hold it, before anything is pulled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.known import KnownImage
from lightning_smith.images.pull import Puller
from lightning_smith.images.registry import RemoteImage
from lightning_smith.repositories.names import image_key

UNPACKED_RATIO = 3.0
"""Unpacked bytes a compressed one, where no table knows them: gzip's on Python environments is 2.5 to 3."""

BYTES_PER_INODE = 16_384
"""As mkfs.ext4 reckons by default; a conda environment has about that many bytes a file."""

RESERVE_BYTES = 2_000_000_000
"""What must be left free."""

MIN_API = (1, 41)
"""API of Docker 20.10, the oldest that the tests run on."""

_DRIVERS = ("overlay2", "overlayfs", "overlay", "aufs", "btrfs", "zfs", "fuse-overlayfs")
"""Storage drivers under which images share their common layers."""


@dataclass(frozen=True)
class Plan:
    """Images that are missing, and what they take."""

    images: int
    """All that are needed."""
    missing: Mapping[str, RemoteImage]
    """By key."""
    unavailable: Mapping[str, str]
    """Reasons by image name: no registry has them, or they are for another platform."""
    compressed_bytes: int
    """Of distinct layers: images share them."""
    unpacked_bytes: int

    def sentence(self) -> str:
        """For a person: number and gigabytes."""
        text = (
            f"{self.images} images, {self.images - len(self.missing) - len(self.unavailable)} at the daemon, "
            f"{len(self.missing)} to pull ({self.compressed_bytes / 1e9:.1f} GB, about "
            f"{self.unpacked_bytes / 1e9:.1f} GB unpacked)"
        )
        return text + (f", {len(self.unavailable)} not to be had" if self.unavailable else "")


def plan_pulls(
    puller: Puller, names: Sequence[str], known: Mapping[str, KnownImage], *, parallel: int
) -> Plan:
    """Ask the registry for each image that the daemon lacks."""

    def describe(name: str) -> tuple[str, RemoteImage | None, str | None]:
        try:
            return name, puller.describe(name), None
        except UserError as error:
            return name, None, str(error)

    missing: dict[str, RemoteImage] = {}
    unavailable: dict[str, str] = {}
    with ThreadPoolExecutor(parallel) as pool:
        for name, remote, reason in pool.map(describe, names):
            if reason is not None:
                unavailable[name] = reason
            elif remote is not None:
                missing[image_key(name)] = remote
    layers = dict(layer for remote in missing.values() for layer in remote.layers)
    compressed = sum(layers.values())
    listed = sum(remote.compressed_bytes for remote in missing.values())
    shared = compressed / listed if listed else 1.0
    unpacked = sum(
        known[key].unpacked_bytes if key in known else remote.compressed_bytes * UNPACKED_RATIO
        for key, remote in missing.items()
    )
    return Plan(len(names), missing, unavailable, compressed, int(unpacked * shared))


def check_daemon(daemon: Daemon) -> dict[str, Any]:
    """Return what the daemon says of itself. Raise UserError if it is too old or stores every image whole."""
    with daemon.asked("describe itself"):
        version, info = daemon.api.version(), daemon.api.info()
    api = tuple(int(part) for part in version["ApiVersion"].split("."))
    if api < MIN_API:
        raise UserError(
            f"the Docker daemon at {daemon.host} is too old ({version.get('Version')}, API {version['ApiVersion']}): "
            f"it needs API {'.'.join(map(str, MIN_API))}, which Docker 20.10 has"
        )
    if info["Driver"] not in _DRIVERS:
        raise UserError(
            f"the Docker daemon at {daemon.host} stores images with {info['Driver']}, which keeps a full copy of every "
            "layer for every image: start it with --storage-driver overlay2"
        )
    return {"version": version.get("Version"), "driver": info["Driver"], "root": info["DockerRootDir"]}


def check_space(daemon: Daemon, plan: Plan, root: Path) -> str:
    """Return what is free where the daemon keeps images, as a clause. Raise UserError if the plan does not fit.

    A number of images that would fit is not said to do: training needs them all.
    """
    if not daemon.host.startswith("unix://") or not root.is_dir():
        return "the daemon's disk is not of this machine, so its free space is not known"
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    need = plan.unpacked_bytes + (RESERVE_BYTES if plan.missing else 0)
    if free < need:
        raise UserError(
            f"{root} has {free / 1e9:.1f} GB free, and {len(plan.missing)} missing images take about "
            f"{need / 1e9:.1f} GB: free {(need - free) / 1e9:.1f} GB (docker system df), or move the daemon's data-root"
        )
    inodes = plan.unpacked_bytes // BYTES_PER_INODE
    if disk.f_files and disk.f_favail < inodes:
        raise UserError(
            f"{root} has {disk.f_favail} inodes free, and {len(plan.missing)} missing images take about {inodes}: move "
            "the daemon's data-root to a file system with more (mkfs.ext4 -i 8192, or xfs)"
        )
    return f"{free / 1e9:.1f} GB free in {root}"


def write_plan(path: Path, plan: Plan, daemon: Mapping[str, Any]) -> None:
    """Write the plan for the pulls that follow it, which need not ask for the same again."""
    row = {**asdict(plan), "missing": {key: asdict(remote) for key, remote in plan.missing.items()}}
    write_json(path, {**row, "daemon": dict(daemon)})


def read_planned(path: Path) -> dict[str, RemoteImage]:
    """Return images of a plan by key."""
    rows: Iterable[tuple[str, dict[str, Any]]] = read_json(path)["missing"].items()
    return {key: RemoteImage(**{**row, "layers": tuple(map(tuple, row["layers"]))}) for key, row in rows}
