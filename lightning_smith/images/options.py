"""The options that the scripts for images share, and what they make of them."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightning_smith.core.arguments import number, whole
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.images.daemon import Daemon, connect
from lightning_smith.images.known import KnownImage, read_known
from lightning_smith.images.layer import AgentLayer, build_layer
from lightning_smith.images.preflight import read_planned
from lightning_smith.images.prepare import Certifier, Preparation
from lightning_smith.images.pull import STALL_S, Puller, PullSettings
from lightning_smith.images.pull_progress import PullProgress
from lightning_smith.images.push import Pusher
from lightning_smith.images.registry import Registries
from lightning_smith.repositories.names import ORGANISATIONS, registry_place

PYTHON_VERSION = "3.12.15"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options about where images come from."""
    parser.add_argument(
        "--organisation", action="append", help="where an image is looked for if its own name is not there"
    )
    parser.add_argument(
        "--mirror", type=registry_place, help="host[:port][/prefix] that stands before Docker Hub"
    )
    parser.add_argument(
        "--table",
        type=Path,
        default=REPOSITORY / "assets/images/images.tsv",
        help="digests that are required (%(default)s)",
    )
    parser.add_argument(
        "--min-mb-per-s",
        type=number(0, above=True),
        default=0.5,
        help="a slower pull is given up (%(default)s)",
    )


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """Options about the agent layer, and where images go."""
    parser.add_argument(
        "--agent-python",
        default=PYTHON_VERSION,
        help="version for uv, or path of an interpreter (%(default)s)",
    )
    parser.add_argument(
        "--agent", type=Path, default=Path("work/agent"), help="folder of the built layer (%(default)s)"
    )
    parser.add_argument(
        "--push-to", type=registry_place, help="host[:port][/prefix] of the registry that the nodes pull from"
    )
    parser.add_argument(
        "--share-layer",
        action="store_true",
        help="make the daemon's copies of the layer hard links of one (overlay2, this machine, root)",
    )


def add_certify_options(parser: argparse.ArgumentParser) -> None:
    """Options about the tasks that are graded in each image as a part of its proof."""
    parser.add_argument(
        "--certify-tasks",
        type=whole(0),
        default=0,
        help="tasks of each SWE-smith image whose gold patch, and no patch at all, are graded (%(default)s)",
    )
    parser.add_argument("--tests", default="smith", help="backends.tests (default %(default)s)")
    parser.add_argument(
        "--grading-timeout",
        type=number(0, above=True),
        default=600,
        help="processor seconds of one test run (%(default)s)",
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("work/certify"), help="where trees go (%(default)s)"
    )


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
def tools(args: argparse.Namespace, images: int, plan: Path | None = None) -> Iterator[Tools]:
    """The daemon and the registries, and a puller between them."""
    settings = PullSettings(
        organisations=tuple(args.organisation or ORGANISATIONS[:2]),
        mirror=args.mirror,
        min_bytes_per_s=args.min_mb_per_s * 1e6,
    )
    with connect(STALL_S) as daemon, Registries(insecure=daemon.insecure_hosts()) as registries:
        progress, stop = PullProgress(images), threading.Event()
        known = dict(read_known(args.table))
        planned = read_planned(plan) if plan and plan.is_file() else {}
        puller = Puller(daemon, registries, known, settings, progress, stop, planned)
        yield Tools(daemon, registries, known, puller, progress, stop)


def preparation(
    args: argparse.Namespace, tools: Tools, out: Path, certifier: Certifier | None
) -> Preparation:
    """What prepares one image after another."""
    pusher = (
        Pusher(tools.daemon, tools.registries, args.push_to, tools.puller.retries) if args.push_to else None
    )
    layer_of = partial(_layer, args.agent, args.agent_python)
    return Preparation(tools.daemon, tools.puller, layer_of, out, pusher, certifier, share=args.share_layer)


def _layer(folder: Path, python: str, family: str) -> AgentLayer:
    return build_layer(folder, python=python, project=REPOSITORY / "envs/agent", family=family)
