"""Images pulled by a real daemon from a real registry, with the faults that registries have."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker_image
import pytest
from local_registry import Fault, FaultyProxy, faulty_registry, push

from lightning_smith.core.errors import UserError
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.known import KnownImage
from lightning_smith.images.pull import Pulled, Puller, PullSettings, StoppedError, image_at
from lightning_smith.images.pull_progress import PullProgress
from lightning_smith.images.registry import AbsentError, Registries, RegistryError
from lightning_smith.repositories.names import image_key

pytestmark = pytest.mark.e2e

QUICK = PullSettings(tries=3, first_wait_s=0.05)


def tree(word: str, size: int = 0) -> docker_image.Tree:
    made = docker_image.Tree()
    made.text("etc/word", word)
    if size:
        made.add_bytes("etc/bulk", os.urandom(size))
    return made


@pytest.fixture(scope="module")
def registry(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    with faulty_registry(tmp_path_factory.mktemp("registry")) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "registry" in request.fixturenames:
        proxy = request.getfixturevalue("registry")
        proxy.faults.clear()
        proxy.seen.clear()


def pushed(
    daemon: Daemon, registry: FaultyProxy, path: str, word: str = "", size: int = 0
) -> tuple[str, str]:
    """Push a new image that the daemon then lacks; returns its name and its digest."""
    made = docker_image.import_image(daemon, tree(word or path, size), "acme/made")
    name = f"{registry.host}/{path}"
    digest = push(daemon, made, name)
    docker_image.forget(daemon, made)
    return name, digest


def pull(daemon: Daemon, name: str, settings: PullSettings = QUICK, **known: KnownImage) -> Pulled:
    with Registries() as registries:
        done = Puller(daemon, registries, known, settings).pull(name)
    docker_image.imported.add(done.found.id)
    return done


def test_an_image_is_pulled_once_with_its_digest(daemon: Daemon, registry: FaultyProxy) -> None:
    name, digest = pushed(daemon, registry, "swebench/one", size=50_000)
    done = pull(daemon, name)
    assert (done.found.digest, done.image_name, done.found.name) == (digest, name, name)
    assert done.compressed_bytes > 50_000 and done.fetched_bytes == done.compressed_bytes
    assert image_at(daemon, f"{name}:latest") == done.found.id
    registry.seen.clear()
    again = pull(daemon, name)
    assert (again.found, again.fetched_bytes) == (done.found, 0) and registry.seen == []


def test_an_untagged_name_pulls_one_tag(daemon: Daemon, registry: FaultyProxy) -> None:
    name = f"{registry.host}/acme/tags"
    for tag in ("latest", "old1", "old2"):
        made = docker_image.import_image(daemon, tree(tag), "acme/made")
        push(daemon, made, name, tag)
        docker_image.forget(daemon, made)
    pull(daemon, name)
    tags = {tag for image in daemon.api.images() for tag in image["RepoTags"] or () if tag.startswith(name)}
    assert tags == {f"{name}:latest"}


def test_names_are_looked_for_at_the_mirror_and_in_both_organisations(
    daemon: Daemon, registry: FaultyProxy
) -> None:
    key = "swesmith.x86_64.pypi_1776_mirrored.0badcafe"
    _, digest = pushed(daemon, registry, f"hub/jyangballin/{key}")
    settings = dataclasses.replace(
        QUICK, mirror=f"{registry.host}/hub", organisations=("swebench", "jyangballin")
    )
    done = pull(daemon, f"swebench/{key}", settings)
    assert done.source == f"{registry.host}/hub/jyangballin/{key}" and done.found.name == f"swebench/{key}"
    assert done.found.digest == digest
    old = key.replace("_1776_", "__")
    assert pull(daemon, old, settings).fetched_bytes == 0  # the spelling of before July 2025
    assert image_at(daemon, f"{old}:latest") == done.found.id


def test_an_absent_image_is_not_tried_again(daemon: Daemon, registry: FaultyProxy) -> None:
    with pytest.raises(
        AbsentError, match=r"there is no .*acme/none at 127\.0\.0\.1 with tag or digest latest"
    ):
        pull(daemon, f"{registry.host}/acme/none")
    assert len(registry.requests("acme/none")) == 1


def test_retry_after_is_heeded(daemon: Daemon, registry: FaultyProxy) -> None:
    name, digest = pushed(daemon, registry, "acme/limited")
    registry.faults.append(Fault("GET .*/limited/manifests", 429, {"Retry-After": "1"}, times=2))
    assert pull(daemon, name).found.digest == digest
    times = [at for _, at, _ in registry.requests("GET .*/limited/manifests/latest")]
    assert times[1] - times[0] >= 1 and times[2] - times[1] >= 1
    name, _ = pushed(daemon, registry, "acme/closed")
    registry.faults = [Fault("GET .*/closed/manifests", 429, {"Retry-After": "7200"})]
    started = time.monotonic()
    with pytest.raises(UserError, match=r"limits how often .*429.*tried 1 time, and asks to wait 7200 s"):
        pull(daemon, name)
    assert time.monotonic() - started < 5


def test_a_limit_that_the_daemon_meets_is_waited_for(daemon: Daemon, registry: FaultyProxy) -> None:
    name, digest = pushed(daemon, registry, "acme/blobs")
    registry.seen.clear()
    # The first question of the daemon itself: ours is answered, then the layer is refused.
    registry.faults.append(Fault("(GET|HEAD) .*/blobs/manifests/sha256", 429, times=1))
    assert pull(daemon, name).found.digest == digest


@pytest.mark.parametrize(
    "fault", [Fault("GET", 503, times=2), Fault("GET .*/blobs/sha256", cut=True, times=2)]
)
def test_passing_faults_are_tried_again(daemon: Daemon, registry: FaultyProxy, fault: Fault) -> None:
    name, digest = pushed(daemon, registry, f"acme/passing{fault.status}", size=100_000)
    registry.faults.append(fault)
    assert pull(daemon, name).found.digest == digest
    assert fault.times == 0


def test_a_registry_that_stays_broken(daemon: Daemon, registry: FaultyProxy) -> None:
    name, _ = pushed(daemon, registry, "acme/broken")
    registry.faults.append(Fault("GET", 503))
    with pytest.raises(UserError, match=r"the registry failed on .*acme/broken .*503.*tried 3 times"):
        pull(daemon, name)
    assert len(registry.requests("GET .*broken/manifests")) == 3


def test_credentials_come_from_the_docker_configuration(
    daemon: Daemon, registry: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, digest = pushed(daemon, registry, "private/image")
    closed = Fault("^GET /v2/", 401, {"WWW-Authenticate": 'Basic realm="x"'})
    registry.faults.append(closed)
    with pytest.raises(AbsentError, match=r"no right to see it \(401\).*docker login 127\.0\.0\.1"):
        pull(daemon, name)
    pair = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": pair}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    closed.match, closed.without = "^GET /v2/", f"Basic {pair}"
    registry.seen.clear()
    assert pull(daemon, name).found.digest == digest
    assert {authorization for line, _, authorization in registry.seen if "blobs" in line} == {f"Basic {pair}"}


def test_tokens(daemon: Daemon, registry: FaultyProxy) -> None:
    name, _ = pushed(daemon, registry, "private/token")
    realm = f"http://{registry.host}/token"
    challenge = f'Bearer realm="{realm}",service="here",scope="repository:private/token:pull"'
    registry.faults.append(Fault("^GET /token", 200, body=b'{"token": "abc"}'))
    registry.faults.append(Fault("^GET /v2/", 401, {"WWW-Authenticate": challenge}, without="Bearer abc"))
    with Registries() as registries:
        assert registries.about(name).compressed_bytes > 0
    asked = registry.requests("GET /token")
    assert len(asked) == 1 and "service=here&scope=repository%3Aprivate%2Ftoken%3Apull" in asked[0][0]


def test_the_required_digest_is_pulled_or_nothing(daemon: Daemon, registry: FaultyProxy) -> None:
    name, old = pushed(daemon, registry, "acme/moving", word="old")
    _, new = pushed(daemon, registry, "acme/moving", word="new")
    assert old != new
    done = pull(daemon, name, **{image_key(name): KnownImage(old, 1, 1)})
    assert done.found.digest == old
    wrong = "sha256:" + "0" * 64
    with pytest.raises(UserError, match=rf"must have the digest {wrong}, and .* has {new}: correct its row"):
        pull(daemon, name, **{image_key(name): KnownImage(wrong, 1, 1)})
    # The tag at the daemon names another image than the one that is required: it is moved.
    assert pull(daemon, name, **{image_key(name): KnownImage(new, 1, 1)}).found.digest == new


def test_an_image_for_another_processor_is_refused_before_it_is_pulled(
    daemon: Daemon, registry: FaultyProxy
) -> None:
    made = docker_image.load_image(daemon, tree("arm"), "acme/arm", "arm64")
    name = f"{registry.host}/acme/arm"
    push(daemon, made, name)
    with pytest.raises(UserError, match=r"arm is for linux/arm64, not for linux/amd64"):
        pull(daemon, "acme/arm")
    docker_image.forget(daemon, made)
    registry.seen.clear()
    with pytest.raises(UserError, match=r"acme/arm is for linux/arm64, not for linux/amd64"):
        pull(daemon, name)
    assert registry.requests("HEAD|blobs/.*layer") == []


def test_a_pull_has_a_limit_by_size_and_can_be_stopped(daemon: Daemon, registry: FaultyProxy) -> None:
    name, _ = pushed(daemon, registry, "acme/slow", size=400_000)
    registry.faults.append(Fault("GET .*/blobs/", bytes_per_s=40_000))
    slow = dataclasses.replace(QUICK, allowance_s=0.5, min_bytes_per_s=1e6)
    with pytest.raises(UserError, match=r"took longer than 1 s: check the network"):
        pull(daemon, name, slow)
    stop = threading.Event()
    threading.Timer(0.7, stop.set).start()
    with Registries() as registries, pytest.raises(StoppedError, match="was interrupted"):
        Puller(daemon, registries, settings=QUICK, stop=stop).pull(name)


def test_what_is_no_registry(daemon: Daemon, registry: FaultyProxy) -> None:
    registry.faults.append(Fault("GET", 200, body=b"<html>hello</html>"))
    with Registries() as registries, pytest.raises(RegistryError, match="no manifest that Docker reads"):
        registries.about(f"{registry.host}/acme/page")


def test_progress_in_a_log_and_on_a_terminal(daemon: Daemon, registry: FaultyProxy) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    name, _ = pushed(daemon, registry, "acme/shown", size=300_000)
    registry.faults.append(Fault("GET .*/blobs/", bytes_per_s=400_000))
    for stream in (io.StringIO(), Terminal()):
        progress = PullProgress(1, log_every_s=0.2, stream=stream)
        with Registries() as registries:
            done = Puller(daemon, registries, settings=QUICK, progress=progress).pull(name)
        text = stream.getvalue()
        assert "[pull] 0/1 images, 1 layers to come" in text and f"{name}: pulled, 0.3 MB" in text
        assert ("\r\x1b[K" in text) is stream.isatty()
        with daemon.asked("remove"):
            daemon.api.remove_image(done.found.id, force=True)
