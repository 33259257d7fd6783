"""The daemon, the registries and what works between them, for the scripts about images."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightning_smith.config.stages import ImageSources, ImageStage
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.images.daemon import Daemon, connect
from lightning_smith.images.known import KnownImage, read_known
from lightning_smith.images.layer import build_layer
from lightning_smith.images.preflight import read_planned
from lightning_smith.images.prepare import Certifier, Preparation
from lightning_smith.images.pull import STALL_S, Puller, PullSettings
from lightning_smith.images.pull_progress import PullProgress
from lightning_smith.images.push import Pusher
from lightning_smith.images.registry import Registries

PYTHON_VERSION = "3.12.15"


KNOWN_IMAGES = REPOSITORY / "assets/images/images.tsv"
"""Digests that are required."""


@dataclass(frozen=True)
class Tools:
    """What the options asked for."""

    daemon: Daemon
    registries: Registries
    known: dict[str, KnownImage]
    puller: Puller
    progress: PullProgress
    stop: threading.Event


@contextmanager
def tools(sources: ImageSources, images: int, plan: Path | None = None) -> Iterator[Tools]:
    """The daemon and the registries, and a puller between them."""
    settings = PullSettings(
        organisations=sources.organisations,
        mirror=sources.mirror,
        min_bytes_per_s=sources.min_mb_per_s * 1e6,
    )
    with connect(STALL_S) as daemon, Registries(insecure=daemon.insecure_hosts()) as registries:
        progress, stop = PullProgress(images), threading.Event()
        known = dict(read_known(KNOWN_IMAGES))
        planned = read_planned(plan) if plan and plan.is_file() else {}
        puller = Puller(daemon, registries, known, settings, progress, stop, planned)
        yield Tools(daemon, registries, known, puller, progress, stop)


def preparation(stage: ImageStage, tools: Tools, out: Path, certifier: Certifier | None) -> Preparation:
    """Return what prepares one image after another."""
    registry = stage.push_to
    pusher = Pusher(tools.daemon, tools.registries, registry, tools.puller.retries) if registry else None
    layer_of = partial(build_layer, stage.agent, python=stage.agent_python, project=REPOSITORY / "envs/agent")
    return Preparation(tools.daemon, tools.puller, layer_of, out, pusher, certifier)
