"""Preparing images against the published way, on the same bases and with the same local package index.

    uv run python benchmarks/images.py [--images 222] [--theirs 5] [--scratch FOLDER]

Theirs is the published example's: in a container of each image, `bash -lc "python -m pip install openai"`, then commit
and tag; pip reads the wheels that our lock names from an index on localhost. Ours adds the agent layer, built once from
the same index, and proves every image (environment hashed before and after, test command, git); the published way
proves nothing, so `speedup` compares making alone and `speedup_proved` the whole of ours. Bases are derived from one
conda-like image of this machine's programs. A Docker daemon is started in the scratch folder (root, dockerd), which
takes 3 GB and is removed. The last line is one JSON object:

    speedup                   seconds an image of theirs over ours, making the image
    speedup_proved            the same with the proof in ours
    layer_s                   seconds to build the layer, once for all images
    network_bytes_per_image   bytes that ours fetched for each image; theirs_network_bytes_per_image beside it
    disk_ratio_50             disk that 50 images add over the disk that one adds, layer included
    images, rss_first_mb, rss_last_mb   images prepared in one run, memory after the tenth part and after all
"""

from __future__ import annotations

import argparse
import contextlib
import ensurepip
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import build_layer
from lightning_smith.images.layered import add_layer
from lightning_smith.images.prepare import Preparation, prepare_all
from lightning_smith.images.pull import Puller
from lightning_smith.images.registry import Registries

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))
PIP = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
DISK_IMAGES = 50


class Index(ThreadingHTTPServer):
    """A package index over a folder of wheels; `sent_bytes` counts what it gave out."""

    def __init__(self, wheels: Path) -> None:
        self.sent_bytes = 0
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(wheels)))
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        wheels = Path(self.directory)
        if self.path.startswith("/simple/"):
            name = self.path.split("/")[2]
            own = [
                w.name for w in wheels.glob("*.whl") if w.name.split("-")[0].lower().replace("_", "-") == name
            ]
            page = "".join(f'<a href="/{wheel}">{wheel}</a>\n' for wheel in own).encode()
            self.send_response(200 if own else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            self.server.sent_bytes += len(page)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            self.server.sent_bytes += (wheels / self.path.lstrip("/")).stat().st_size  # pyright: ignore
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=222, help="images of ours (%(default)s), at least 50")
    parser.add_argument("--theirs", type=int, default=5, help="images made the published way (%(default)s)")
    parser.add_argument("--scratch", type=Path, help="folder for the daemon (the temporary one)")
    args = parser.parse_args(argv)
    if args.images < DISK_IMAGES:
        parser.error(f"--images must be {DISK_IMAGES} or more")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    from docker_daemon import own_daemon

    with (
        tempfile.TemporaryDirectory(dir=args.scratch) as folder,
        own_daemon("the benchmark needs its own") as daemon,
    ):
        print(json.dumps(measure(daemon, Path(folder), args.images, args.theirs)))


def measure(daemon: Daemon, folder: Path, images: int, theirs: int) -> dict[str, object]:
    import tiny_image

    python = tiny_image.TESTBED_PYTHON.resolve()
    root = Path(daemon.host.removeprefix("unix://")).parent / "data"
    index = Index(download(folder, python))
    names = bases(daemon, folder, images)
    say(f"{len(names)} bases; {platform.processor() or platform.machine()}, {os.cpu_count()} cores")

    started = time.monotonic()
    for name in names[:theirs]:
        published_way(daemon, name, index.url)
    theirs_s = (time.monotonic() - started) / theirs
    theirs_bytes = index.sent_bytes / theirs
    for name in names[:theirs]:
        daemon.api.remove_image(f"{name}:openai", force=True)
    say(f"published way: {theirs_s:.1f} s and {theirs_bytes / 1e6:.1f} MB of network an image")

    started = time.monotonic()
    with environment(UV_DEFAULT_INDEX=index.url):
        layer = build_layer(folder / "agent", python=str(python), project=ROOT / "envs/agent")
    layer_s = time.monotonic() - started
    sent = index.sent_bytes

    ratio = disk_ratio(daemon, root, names, lambda name: add_layer(daemon, daemon.image(name), layer))
    daemon.api.remove_image(layer.stage, force=True)
    made: list[float] = []
    proved: list[float] = []
    memory: list[float] = []
    puller = Puller(daemon, Registries())
    prepared = Preparation(daemon, puller, lambda: layer, folder / "images")

    def prepare(name: str) -> dict[str, object]:
        manifest = prepared.prepare(name)
        made.append(manifest["wall_s"]["layer"])
        proved.append(manifest["wall_s"]["proof"])
        memory.append(psutil.Process().memory_info().rss / 2**20)
        return manifest

    outcome = prepare_all(names, prepare, parallel=1, stop=threading.Event())
    if outcome.failures:
        raise UserError(f"an image of the benchmark failed: {next(iter(outcome.failures.values()))}")
    ours_s = sum(made) / len(made)
    say(f"ours: {ours_s:.2f} s an image, and {sum(proved) / len(proved):.2f} s for its proof")
    return {
        "speedup": round(theirs_s / ours_s, 1),
        "speedup_proved": round(theirs_s / (ours_s + sum(proved) / len(proved)), 1),
        "theirs_s": round(theirs_s, 2),
        "ours_s": round(ours_s, 3),
        "proof_s": round(sum(proved) / len(proved), 2),
        "layer_s": round(layer_s, 1),
        "layer_mb": round(layer.bytes / 1e6, 1),
        "network_bytes_per_image": (index.sent_bytes - sent) / images,
        "theirs_network_bytes_per_image": round(theirs_bytes),
        "disk_ratio_50": round(ratio, 1),
        "images": images,
        "rss_first_mb": round(memory[images // 10], 1),
        "rss_last_mb": round(memory[-1], 1),
    }


def say(text: str) -> None:
    print(f"[benchmark] {text}", file=sys.stderr, flush=True)


def download(folder: Path, python: Path) -> Path:
    """The wheels that the lock names, by pip, from the user's index."""
    wheels, requirements = folder / "wheels", folder / "requirements.txt"
    uv = os.environ.get("UV", "uv")
    export = [
        uv,
        "export",
        "--frozen",
        "--project",
        str(ROOT / "envs/agent"),
        "--no-dev",
        "--no-emit-project",
        "-q",
    ]
    subprocess.run([*export, "--no-hashes", "-o", str(requirements)], check=True)
    pip = [
        str(python),
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-r",
        str(requirements),
        "-d",
        str(wheels),
    ]
    subprocess.run(pip, check=True, env={**os.environ, "PYTHONPATH": str(PIP)})
    return wheels


def bases(daemon: Daemon, folder: Path, images: int) -> list[str]:
    """Images of the conda-like layout that differ in one file; pip is in their environment."""
    import docker_image

    tree = docker_image.testbed_tree(folder / "base")
    unpacked = folder / "pip"
    shutil.unpack_archive(PIP, unpacked, "zip")
    for entry in unpacked.iterdir():
        tree.add(entry, f"{docker_image.TESTBED}/lib/python3.12/site-packages/{entry.name}")
    first = docker_image.import_image(daemon, tree, "benchmark/base")
    names = [f"benchmark/swesmith.x86_64.pypi_1776_p{n}.0badcafe" for n in range(images)]
    for name in names:
        own = docker_image.Tree()
        own.text("etc/word", name)
        docker_image.derive(daemon, first, name, own)
    return names


def published_way(daemon: Daemon, name: str, index: str) -> None:
    command = f"source ~/.bashrc; python -m pip install --no-cache-dir --index-url {index} openai"
    container = daemon.create(
        image=name,
        command=["bash", "-lc", command],
        environment={"HOME": "/root"},
        host_config=daemon.api.create_host_config(network_mode="host"),
    )
    daemon.api.start(container)
    if daemon.api.wait(container)["StatusCode"] != 0:
        raise UserError(f"the published way failed on {name}: {daemon.api.logs(container).decode()[-500:]}")
    daemon.api.commit(container, repository=name, tag="openai")
    daemon.remove(container)


def disk_ratio(daemon: Daemon, root: Path, names: list[str], add) -> float:
    """Disk that 50 images add over the disk that one adds; they are removed again."""
    before = used_bytes(root)
    ids = [add(names[0])]
    one = used_bytes(root) - before
    ids += [add(name) for name in names[1:DISK_IMAGES]]
    many = used_bytes(root) - before
    for image in ids:
        daemon.api.remove_image(image, force=True)
    return many / one


def used_bytes(root: Path) -> int:
    """Blocks of all files below a folder."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(f"{folder}/{name}")
                if (key := (status.st_dev, status.st_ino)) not in seen:
                    seen.add(key)
                    total += status.st_blocks * 512
    return total


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if __name__ == "__main__":
    run_script(main)
