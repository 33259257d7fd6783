"""Images with the agent layer, made and proved by a real daemon."""

from __future__ import annotations

import ensurepip
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import docker_image
import pytest
import tiny_image
from docker_daemon import own_daemon
from layer_fixtures import build, forget_made, preparation, small_layer
from local_registry import Fault, FaultyProxy, faulty_registry

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json
from lightning_smith.images import layered, proof
from lightning_smith.images.daemon import LABEL, Daemon
from lightning_smith.images.layer import AgentLayer, _known, build_layer
from lightning_smith.images.layered import add_layer, tags
from lightning_smith.images.prepare import prepare_all, table
from lightning_smith.images.proof import agent_volume, fingerprint, refuse_changes, refuse_layers
from lightning_smith.images.prune import find_made
from lightning_smith.images.pull import PullSettings, Retries, image_at
from lightning_smith.images.pull_progress import PullProgress
from lightning_smith.images.push import Pusher
from lightning_smith.images.registry import Registries
from lightning_smith.repositories.names import image_key

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

ROOT = tiny_image.REPOSITORY
PYTEST = ("python", "-m", "pytest")
NAMES = [f"swesmith/swesmith.x86_64.pypi_1776_{word}.0badcafe" for word in ("alpha", "beta", "gamma")]


@pytest.fixture(scope="module")
def registry(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    with faulty_registry(tmp_path_factory.mktemp("registry")) as proxy:
        yield proxy


@pytest.fixture
def three(daemon: Daemon, docker_image_name: str) -> Iterator[list[str]]:
    """Three images of the tiny layout, which are then forgotten with what was made of them."""
    for name in NAMES:
        tree = docker_image.Tree()
        tree.text("etc/word", name)
        docker_image.derive(daemon, docker_image_name, name, tree)
    yield NAMES
    forget_made(daemon)


def run_in(daemon: Daemon, image: str, *command: str, **options: object) -> str:
    container = daemon.create(image=image, command=list(command), network_disabled=True, **options)
    try:
        daemon.api.start(container)
        code = daemon.api.wait(container)["StatusCode"]
        out = daemon.api.logs(container).decode()
        assert code == 0, out
        return out
    finally:
        daemon.remove(container)


def test_the_layer_is_the_same_bytes_whoever_builds_it(built: AgentLayer, tmp_path: Path) -> None:
    again = build(tmp_path)
    assert (again.diff_id, again.inputs) == (built.diff_id, built.inputs)
    with tarfile.open(built.tar) as archive:
        members = archive.getmembers()
    assert {m.name.split("/")[0] for m in members} == {"opt"} and all(
        (m.uid, m.gid, m.mtime, m.uname) == (0, 0, 0, "") for m in members
    )
    assert all(m.mode & 0o444 == 0o444 for m in members) and len(members) < 200
    record = tmp_path / "layer-glibc.json"
    assert build(tmp_path) == again == _known(record, again.inputs)
    assert _known(record, "other inputs") is None
    again.tar.write_bytes(again.tar.read_bytes()[:-1] + b"x")
    assert _known(record, again.inputs) is None


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"images.agent_python names /no/python, which does not exist"):
        build_layer(tmp_path, python="/no/python", project=ROOT / "envs/agent")


def test_prepared_once_and_again_only_where_altered(
    daemon: Daemon, layer: AgentLayer, three: list[str], tmp_path: Path
) -> None:
    """One layer in all, the environment as it was, and a tag that was moved is found."""
    prepared = preparation(daemon, layer, tmp_path)
    first = {name: prepared.prepare(name) for name in three}
    for name, manifest in first.items():
        assert read_json(tmp_path / f"{image_key(name)}.json") == manifest
        about = daemon.api.inspect_image(f"{name}:openai")
        below = daemon.api.inspect_image(name)
        assert about["RootFS"]["Layers"] == [*below["RootFS"]["Layers"], layer.diff_id]
        assert about["Id"] == manifest["image"]["id"] == image_at(daemon, f"{name}:openai-{layer.short}")
        assert {k: v for k, v in about["Config"].items() if k in ("Env", "Cmd", "User", "WorkingDir")} == {
            k: v for k, v in below["Config"].items() if k in ("Env", "Cmd", "User", "WorkingDir")
        }
        assert manifest["branches"] == [tiny_image.TASK]
        assert manifest["agent"]["openai"] == layer.packages["openai"]
        (packages,) = (entry["packages"] for entry in manifest["environment"].values())
        assert packages["pytest"] == "8.4.2" and "openai" not in packages
        version = run_in(
            daemon,
            f"{name}:openai",
            "/opt/agent/bin/python3",
            "-I",
            "-c",
            "import openai, sys; print(sys.prefix)",
        )
        assert version.strip() == "/opt/agent"
    text = table(first.values()).splitlines()
    assert (
        len(text) == 4
        and text[0].startswith("image\tdigest\tbase_id\tid\ttag")
        and text[1].startswith(three[0])
    )

    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert {name: prepared.prepare(name) for name in three} == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == stamps

    # A bare base takes the place of the prepared tag, as after a build that a full disk ended.
    repository, poisoned = three[1], tmp_path / f"{image_key(three[1])}.json"
    daemon.api.tag(repository, repository, "openai", force=True)
    again = {name: prepared.prepare(name) for name in three}
    changed = {path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {poisoned} and again[repository]["image"] == first[repository]["image"]
    assert len(again[repository]["moved_tags"]) == 1
    assert image_at(daemon, f"{repository}:openai") == first[repository]["image"]["id"]

    # A base that changed makes one new image.
    tree = docker_image.Tree()
    tree.text("etc/word", "another")
    docker_image.derive(daemon, repository, repository, tree)
    assert prepared.prepare(repository)["image"]["id"] != first[repository]["image"]["id"]
    assert prepared.prepare(three[0]) == first[three[0]]


def test_names_that_differ_in_their_tag_are_images_of_their_own(
    daemon: Daemon, layer: AgentLayer, docker_image_name: str, tmp_path: Path
) -> None:
    """Prepared side by side, neither takes the other's tag, and what is removed is known from the tags alone."""
    names = []
    for word in ("latest", "one", "two"):
        tree = docker_image.Tree()
        tree.text("etc/word", word)
        made = docker_image.derive(daemon, docker_image_name, "acme/tagged", tree)
        daemon.api.tag(made, "acme/set", word)
        names.append(f"acme/set:{word}")
    out = tmp_path / "images"
    prepared = preparation(daemon, layer, out)
    manifests = {name: prepared.prepare(name) for name in names}
    assert {path.stem for path in out.iterdir()} == set(map(image_key, names)) and len(
        set(map(image_key, names))
    ) == 3
    for name, word in zip(names, ("latest", "one", "two"), strict=True):
        assert run_in(daemon, manifests[name]["image"]["tags"][0], "cat", "/etc/word") == word
    stamps = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert [prepared.prepare(name) for name in names] == list(manifests.values())
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == stamps

    found = find_made(daemon, [], leftovers=True)
    for manifest in manifests.values():
        assert sorted(found.images[manifest["image"]["id"]]) == sorted(manifest["image"]["tags"])
    forget_made(daemon)
    for name in names:
        daemon.api.remove_image(name)


def test_a_daemon_that_builds(
    daemon: Daemon, layer: AgentLayer, three: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way for images stored by containerd, on this daemon: COPY --from, without network."""
    monkeypatch.setattr(layered, "stored_by_containerd", lambda daemon: True)
    monkeypatch.setattr(proof, "stored_by_containerd", lambda daemon: True)
    manifest = preparation(daemon, layer, tmp_path).prepare(three[0])
    assert manifest["agent"]["openai"] == layer.packages["openai"]
    monkeypatch.undo()
    with pytest.raises(UserError, match="is not its base and one layer"):
        refuse_layers(daemon, daemon.image(three[0]).id, manifest["image"]["id"], layer, three[0])


def test_the_published_way_is_found_out(
    daemon: Daemon, docker_image_name: str, layer: AgentLayer, tmp_path: Path
) -> None:
    """`pip install` in the image's own environment, of a package that conflicts with one that the tests use."""
    base = daemon.image(docker_image_name)
    wheel = tmp_path / "pluggy-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pluggy/__init__.py", "__version__ = '0.0.1'\n")
        archive.writestr(
            "pluggy-0.0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pluggy\nVersion: 0.0.1\n"
        )
        archive.writestr(
            "pluggy-0.0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("pluggy-0.0.1.dist-info/RECORD", "")
    pip = docker_image.Tree()
    pip.add(next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")), "opt/pip.whl")
    pip.add(wheel, f"opt/{wheel.name}")
    docker_image.derive(daemon, docker_image_name, "acme/with_pip", pip)
    install = (
        f"/opt/miniconda3/bin/python -m pip install --no-index --no-deps --force-reinstall /opt/{wheel.name}"
    )
    container = daemon.create(
        image="acme/with_pip",
        command=["bash", "-c", install],
        environment={"PYTHONPATH": "/opt/pip.whl"},
        network_disabled=True,
    )
    daemon.api.start(container)
    assert daemon.api.wait(container)["StatusCode"] == 0, daemon.api.logs(container).decode()
    daemon.api.commit(container, repository="acme/published", tag="openai")
    daemon.remove(container)
    docker_image.imported.add(image_at(daemon, "acme/published:openai"))
    volume = agent_volume(daemon, layer)
    before = fingerprint(daemon, base, volume)
    assert before == fingerprint(daemon, daemon.image("acme/with_pip"), volume)
    after = fingerprint(daemon, daemon.image("acme/published:openai"), volume)
    with pytest.raises(UserError, match=r"repository was published with: pluggy 1\.\d+\.\d+ → 0\.0\.1"):
        refuse_changes(before, after, "acme/published:openai")
    with pytest.raises(UserError, match="is not its base and one layer, so it was made another way"):
        refuse_layers(
            daemon, base.id, daemon.image("acme/published:openai").id, layer, "acme/published:openai"
        )


def test_one_changed_byte_is_named(daemon: Daemon, docker_image_name: str, layer: AgentLayer) -> None:
    volume = agent_volume(daemon, layer)
    before = fingerprint(daemon, daemon.image(docker_image_name), volume)
    (folder,) = before
    tree = docker_image.Tree()
    tree.text(f"{folder.lstrip('/')}/pluggy/_manager.py", "changed\n")
    name = docker_image.derive(daemon, docker_image_name, "acme/altered", tree)
    after = fingerprint(daemon, daemon.image(name), volume)
    with pytest.raises(UserError, match=r"published with: .*/site-packages/pluggy differs; remove"):
        refuse_changes(before, after, name)


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [
        ({"testbed/stray": "x"}, (), r"has changes in /testbed \(1, the first is '\?\? stray'\)"),
        ({f"{docker_image.TESTBED}/bin/python": "#!/bin/sh\nexit 1\n"}, (), "cannot run its test command python -m"),
        ({}, ('ENTRYPOINT ["/bin/false"]', "ENV LD_LIBRARY_PATH=/usr/lib PYTHONNOUSERSITE=1"), None),
        ({}, ("USER nobody",), r"has /testbed, which belongs to user 0 and not to its own \(nobody\)"),
    ],
    ids=["changed tree", "no test command", "entrypoint", "another user's tree"],
)  # fmt: skip
def test_images_of_many_kinds(
    daemon: Daemon,
    docker_image_name: str,
    layer: AgentLayer,
    tmp_path: Path,
    files: dict[str, str],
    changes: tuple[str, ...],
    message: str | None,
) -> None:
    tree = docker_image.Tree()
    for name, text in files.items():
        tree.text(name, text, 0o755)
    name = docker_image.derive(daemon, docker_image_name, "acme/kind", tree, *changes)
    prepared = preparation(daemon, layer, tmp_path)
    if message is None:
        assert prepared.prepare(name)["agent"]["python"] == layer.python
        assert image_at(daemon, f"{name}:openai")
    else:
        with pytest.raises(UserError, match=message):
            prepared.prepare(name)
        assert list(tmp_path.glob("*.json")) == [] and image_at(daemon, f"{name}:openai") is None
    forget_made(daemon)


def test_an_image_without_a_c_library_or_a_testbed(daemon: Daemon, layer: AgentLayer, tmp_path: Path) -> None:
    prepared = preparation(daemon, layer, tmp_path)
    tree = docker_image.Tree()
    tree.text("etc/passwd", "x")
    empty = docker_image.import_image(daemon, tree, "acme/empty")
    with pytest.raises(UserError, match="the image acme/empty has no /testbed"):
        prepared.prepare(empty)
    tree = docker_image.Tree()
    for name in ("HEAD", "refs/heads/main"):
        tree.text(f"testbed/.git/{name}", "ref: refs/heads/main\n")
    bare = docker_image.import_image(daemon, tree, "acme/bare")
    with pytest.raises(
        UserError, match="does not start in the image acme/bare: it has no C library that fits"
    ):
        prepared.prepare(bare)
    assert image_at(daemon, "acme/bare:openai") is None
    forget_made(daemon)


def test_pushed_for_the_nodes_with_the_digest(daemon: Daemon, registry: FaultyProxy, tmp_path: Path) -> None:
    """Small images and a small layer: a daemon compresses all that it pushes."""
    small = small_layer(tmp_path)
    registries = Registries()
    progress = PullProgress(2)
    retries = Retries(PullSettings(tries=2, first_wait_s=0.1), progress, threading.Event())
    pusher = Pusher(daemon, registries, f"{registry.host}/nodes", retries)
    layers = []
    for name in NAMES[:2]:
        tree = docker_image.Tree()
        tree.text("etc/word", name)
        docker_image.import_image(daemon, tree, name)
        image_id = add_layer(daemon, daemon.image(name), small)
        registry.faults.append(Fault(f"GET .*{name}/manifests", 503, times=1))
        pushed = pusher.push(image_id, name, small)
        assert pushed["repository"] == pusher.repository(name) == f"{registry.host}/nodes/{name}"
        assert pusher.repository(f"a:5000/{name}") == f"{registry.host}/nodes/a-5000/{name}"
        for tag in tags(name, small):
            about = registries.about(f"{pushed['repository']}:{tag.rpartition(':')[2]}")
            assert about.digest == pushed["digest"]
        layers.append(about.layers[-1])
    assert layers[0] == layers[1]  # one blob for all images
    registry.faults = [Fault("^(GET|HEAD|POST) /v2/", 401, {"WWW-Authenticate": 'Basic realm="x"'})]
    with pytest.raises(
        UserError, match=r"no right to push to 127.*: log in \(docker login 127\.0\.0\.1:\d+\)"
    ):
        pusher.push(image_id, NAMES[2], small)
    forget_made(daemon)
    daemon.api.remove_image(small.stage)


def test_each_image_fails_alone_and_the_end_says_how_to_try_again(
    daemon: Daemon, layer: AgentLayer, three: list[str], tmp_path: Path
) -> None:
    """The script with the published example's arguments."""
    tree = docker_image.Tree()
    tree.text("testbed/stray", "x")
    docker_image.derive(daemon, three[1], three[1], tree)
    dataset = tmp_path / "tasks.jsonl"
    tiny_image.write_tasks(dataset, *(tiny_image.row(image_name=name) for name in three))
    out = tmp_path / "data/images"
    command = [
        sys.executable,
        "scripts/images/pull_images.py",
        "--dataset",
        str(dataset),
        "--dataset",
        str(dataset),
    ]
    command += ["--max-workers", "2", "--out", str(out), "--agent", str(layer.tar.parent)]
    command += ["--agent-python", str(tiny_image.TESTBED_PYTHON)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "[images] 3 images, 3 at the daemon, 0 to pull (0.0 GB, about 0.0 GB unpacked); " in done.stderr
    assert (
        f"error: 1 of 3 images could not be prepared:\n  {three[1]}: the image {three[1]} has changes"
        in done.stderr
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("try just these again: python scripts/images/pull_images.py --dataset ")
    assert last.endswith(f"--image {three[1]}") and last.count("--image") == 1
    assert sorted(path.stem for path in out.glob("*.json")) == sorted(map(image_key, (three[0], three[2])))
    docker_image.derive(daemon, three[0], three[1])
    again = subprocess.run(
        [*command, "--image", three[1]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "[images] 1 of 1 images are ready" in again.stderr and len(list(out.glob("*.json"))) == 3


def _made_by(daemon: Daemon, pid: int) -> list[str]:
    """Ids of a process's containers."""
    found = daemon.api.containers(all=True, filters={"label": LABEL})
    return [each["Id"] for each in found if f"/{pid}/" in each["Labels"][LABEL]]


def test_killed_in_the_middle_and_run_again(
    daemon: Daemon, layer: AgentLayer, three: list[str], tmp_path: Path
) -> None:
    """Ctrl-C and kill -9 leave no container, no tag without proof and no manifest; what was ready stays."""
    dataset = tmp_path / "tasks.jsonl"
    tiny_image.write_tasks(dataset, *(tiny_image.row(image_name=name) for name in three))
    out = tmp_path / "images"
    command = [
        sys.executable,
        "scripts/images/pull_images.py",
        "--dataset",
        str(dataset),
        "--max-workers",
        "1",
    ]
    command += [
        "--out",
        str(out),
        "--agent",
        str(layer.tar.parent),
        "--agent-python",
        str(tiny_image.TESTBED_PYTHON),
    ]
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "ready as" in line:
                    break
            time.sleep(0.2)
            process.send_signal(number)
            assert process.wait(60) == code
        ready = {path.stem: path.stat().st_mtime_ns for path in out.glob("*.json")}
        assert 1 <= len(ready) <= 3
        for name in three:
            assert (image_at(daemon, f"{name}:openai") is not None) >= (image_key(name) in ready)
        if number == signal.SIGINT:
            assert _made_by(daemon, process.pid) == []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {
        k: v for k, v in {p.stem: p.stat().st_mtime_ns for p in out.glob("*.json")}.items() if k in ready
    } == ready
    assert _made_by(daemon, process.pid) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_daemon_that_dies_in_the_middle(layer: AgentLayer, tmp_path: Path) -> None:
    """One sentence an image, none is begun any more, and what is ready counts."""
    with own_daemon("asked for") as daemon:
        docker_image.build(daemon, tmp_path / "build")
        for name in NAMES:
            tree = docker_image.Tree()
            tree.text("etc/word", name)
            docker_image.derive(daemon, tiny_image.IMAGE_NAME, name, tree)
        prepared = preparation(daemon, layer, tmp_path / "out")
        pid = int(Path(daemon.host.removeprefix("unix://")).with_name("pid").read_text())

        def report(name: str, manifest: object, reason: str | None) -> None:
            if manifest is not None:
                os.kill(pid, signal.SIGKILL)

        outcome = prepare_all(
            NAMES,
            prepared.prepare,
            parallel=1,
            stop=threading.Event(),
            report=report,
            alive=lambda: daemon_answers(daemon),
        )
    assert len(outcome.manifests) == 1 and len(outcome.failures) == 2
    assert all("Docker daemon at unix://" in reason for reason in outcome.failures.values())


def daemon_answers(daemon: Daemon) -> bool:
    with daemon.asked("answer"):
        return bool(daemon.api.ping())
