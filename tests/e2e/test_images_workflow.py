"""The real rules: images of a release made ready, nothing done twice, and only what was altered done again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker_image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_image
import yaml
from checkout import copy_checkout
from local_registry import faulty_registry

from lightning_smith.core.files import read_json
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layered import BASE_LABEL
from lightning_smith.images.pull import image_at
from lightning_smith.release.columns import sha256_sums
from lightning_smith.repositories.names import image_key

pytestmark = [
    pytest.mark.whole_run,
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

NAMES = [f"swesmith/swesmith.x86_64.pypi_1776_{word}.0badcafe" for word in ("one", "two")]


@pytest.fixture
def absent(tmp_path: Path) -> Iterator[str]:
    """An image that its registry does not have."""
    with faulty_registry(tmp_path) as registry:
        yield f"{registry.host}/acme/absent"


@pytest.fixture
def clone(daemon: Daemon, docker_image_name: str, absent: str, tmp_path: Path) -> Iterator[Path]:
    """A clone whose release has three tasks, one of them of an image that no registry has."""
    for name in NAMES:
        tree = docker_image.Tree()
        tree.text("etc/word", name)
        docker_image.derive(daemon, docker_image_name, name, tree)
    hub = tmp_path / "hub"
    (hub / "data").mkdir(parents=True)
    shard = "data/train-00000-of-00001.parquet"
    rows = [tiny_image.row(instance_id=f"i{n}", image_name=name) for n, name in enumerate([*NAMES, absent])]
    pq.write_table(pa.Table.from_pylist(rows), hub / shard)
    (hub / "SHA256SUMS").write_text(sha256_sums(hub, [shard]))
    folder = copy_checkout(tmp_path / "clone")
    counts = {"shards": 1, "rows": None, "empty_statements": None, "images": None}
    overlay = {
        "backends": {"hub": "folder"},
        "release": {"folder": str(hub), **counts},
        "images": {
            "agent_python": str(tiny_image.TESTBED_PYTHON),
            "only": [image_key(name) for name in NAMES],
        },
    }
    (folder / "images.yaml").write_text(yaml.safe_dump(overlay))
    yield folder
    made = daemon.api.images(filters={"label": BASE_LABEL}, all=True)
    docker_image.remove_images(daemon, (image["Id"] for image in made))


def prepare(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", "--profile", "k8s", "--configfile", "images.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [*command, "--", "prepare_images"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_prepared_once_and_again_only_where_altered(daemon: Daemon, clone: Path, absent: str) -> None:
    done = prepare(clone)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    assert "[images] 2 images, 2 at the daemon, 0 to pull (0.0 GB, about 0.0 GB unpacked); " in text
    manifests = {name: clone / "data/images" / f"{image_key(name)}.json" for name in NAMES}
    for name, path in manifests.items():
        assert read_json(path)["image"]["id"] == image_at(daemon, f"{name}:openai")
    assert len((clone / "data/images_release.tsv").read_text().splitlines()) == 3

    assert "Nothing to be done" in (again := prepare(clone)).stdout + again.stderr
    daemon.api.tag(NAMES[1], NAMES[1], "openai", force=True)
    stamps = {name: path.stat().st_mtime_ns for name, path in manifests.items()}
    done = prepare(clone)
    assert done.returncode == 0, done.stderr[-3000:]
    changed = [name for name, path in manifests.items() if path.stat().st_mtime_ns != stamps[name]]
    assert changed == [NAMES[1]]
    assert image_at(daemon, f"{NAMES[1]}:openai") == read_json(manifests[NAMES[1]])["image"]["id"]
    assert "Nothing to be done" in (again := prepare(clone)).stdout + again.stderr

    # An image that no registry has fails alone, and the end tells of it.
    config = yaml.safe_load((clone / "images.yaml").read_text())
    config["images"]["only"] = [absent, *config["images"]["only"]]
    (clone / "images.yaml").write_text(yaml.safe_dump(config))
    stamps = {name: path.stat().st_mtime_ns for name, path in manifests.items()}
    done = prepare(clone)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text[-3000:]
    failed = f"{image_key(absent)}: there is no {absent} at 127.0.0.1 with tag"
    assert f"1 images could not be prepared:\n  {failed}" in text
    assert not (clone / f"data/images/{image_key(absent)}.json").exists()
    assert {name: path.stat().st_mtime_ns for name, path in manifests.items()} == stamps
