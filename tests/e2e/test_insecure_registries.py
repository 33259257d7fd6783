"""Registries without TLS, or without a certificate that is trusted: the daemon's own list says how to ask them."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker_image
import pytest
import tiny_image
from docker_daemon import give_up, own_daemon
from local_registry import Fault, FaultyProxy, push, registry
from swe_smith_rows import load_script, make_row

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.registry import Registries

pytestmark = pytest.mark.e2e

KEY = "swesmith.x86_64.acme_1776_tool.1a2b3c4d"


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        if not (address := probe.getsockname()[0]).startswith("127."):
            return address
    give_up("this machine has no address but its loopback's")
    raise AssertionError


class Hosts:
    """One registry at four hosts: over HTTP and HTTPS, on the daemon's list and not."""

    def __init__(self, upstream: int, tls: ssl.SSLContext) -> None:
        address = own_address()
        self.plain, self.plain_unlisted = FaultyProxy(upstream, address), FaultyProxy(upstream, address)
        self.own_tls, self.own_tls_unlisted = (
            FaultyProxy(upstream, address, tls),
            FaultyProxy(upstream, address, tls),
        )
        self.all = (self.plain, self.plain_unlisted, self.own_tls, self.own_tls_unlisted)
        self.listed = (self.plain.host, self.own_tls.host)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("registry")
    if shutil.which("openssl") is None:
        give_up("there is no openssl (apt-get install openssl)")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    make = shlex.split("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=registry -addext")
    made = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make, f"subjectAltName=IP:{own_address()}", *made], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with registry(folder) as port:
        hosts = Hosts(port, tls)
        yield hosts
        for proxy in hosts.all:
            proxy.close()


@pytest.fixture(scope="module")
def listing(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that lists two of the hosts; the registry has the tiny image under a name of SWE-smith's."""
    options = [word for host in hosts.listed for word in ("--insecure-registry", host)]
    with own_daemon("a daemon with a list of its own is wanted", *options) as daemon:
        made = docker_image.build(daemon, tmp_path_factory.mktemp("docker"))
        push(daemon, made, f"{hosts.plain.host}/swebench/{KEY}")
        docker_image.forget(daemon, made)
        yield daemon


@pytest.fixture(autouse=True)
def _quiet(hosts: Hosts) -> None:
    for proxy in hosts.all:
        proxy.faults.clear()
        proxy.seen.clear()


def prepare(folder: Path, built: AgentLayer, *flags: str, key: str = KEY) -> Path:
    """What scripts/images/pull_images.py makes of one task; returns the manifest's path."""
    (folder / "tasks.jsonl").write_text(json.dumps(make_row(1, image_name=f"swebench/{key}")) + "\n")
    layer = ["--agent", str(built.tar.parent), "--agent-python", str(tiny_image.TESTBED_PYTHON)]
    where = ["--dataset", str(folder / "tasks.jsonl"), "--out", str(folder / "images")]
    load_script("pull_images").main([*where, *layer, *flags])
    return folder / "images" / f"{key}.json"


def test_a_mirror_and_a_push_target_over_http(
    listing: Daemon, hosts: Hosts, built: AgentLayer, tmp_path: Path
) -> None:
    host = hosts.plain.host
    manifest = read_json(prepare(tmp_path, built, "--mirror", host, "--push-to", f"{host}/prepared"))
    assert manifest["source"] == f"{host}/swebench/{KEY}" and manifest["base"]["compressed_bytes"] > 0
    assert manifest["image"]["pushed"]["repository"] == f"{host}/prepared/swebench/{KEY}"
    with Registries(insecure=listing.insecure_hosts()) as registries:
        about = registries.about(f"{host}/prepared/swebench/{KEY}:openai")
    assert about.digest == manifest["image"]["pushed"]["digest"]


def test_a_listed_registry_with_a_certificate_of_its_own(listing: Daemon, hosts: Hosts) -> None:
    with Registries(insecure=listing.insecure_hosts()) as registries:
        assert registries.about(f"{hosts.own_tls.host}/swebench/{KEY}").compressed_bytes > 0
    assert len(hosts.own_tls.requests("manifests/latest")) == 1


@pytest.mark.parametrize("option", ["--mirror", "--push-to"])
@pytest.mark.parametrize("kind", ["plain_unlisted", "own_tls_unlisted"])
def test_a_registry_that_is_not_listed_is_refused_at_once(
    listing: Daemon, hosts: Hosts, built: AgentLayer, tmp_path: Path, kind: str, option: str
) -> None:
    proxy: FaultyProxy = getattr(hosts, kind)
    started = time.monotonic()
    said = {
        "plain_unlisted": f"registry {proxy.host} does not speak HTTPS .* one to ask over HTTP",
        "own_tls_unlisted": f"registry {proxy.host} has a certificate that is not trusted here .*SSL_CERT_FILE",
    }[kind]
    with pytest.raises(UserError, match=said) as caught:
        prepare(tmp_path, built, option, proxy.host, key=KEY if option == "--push-to" else f"{KEY}0")
    assert f'add "{proxy.host}" to insecure-registries in /etc/docker/daemon.json' in str(caught.value)
    assert time.monotonic() - started < 20 and proxy.seen == []
    assert not list((tmp_path / "images").glob("*.json"))


def test_credentials_go_over_http_to_listed_hosts_alone(
    listing: Daemon, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"username": "me", "password": "secret"}
    auths = {proxy.host: {"auth": "bWU6c2VjcmV0"} for proxy in hosts.all}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    name = f"{hosts.plain.host}/swebench/{KEY}"
    with Registries(insecure=listing.insecure_hosts()) as registries:
        assert registries.credentials(name) == login | registries.credentials(name)
        realm = f'Bearer realm="http://{hosts.plain_unlisted.host}/token",service="x"'
        hosts.plain.faults.append(Fault("^GET /v2/", 401, {"WWW-Authenticate": realm}))
        with pytest.raises(UserError, match=r"which is not HTTPS"):
            registries.about(name)
        hosts.plain.faults = [Fault("^GET /v2/", 307, {"Location": f"http://{hosts.plain_unlisted.host}/x"})]
        with pytest.raises(UserError, match=r"which is not HTTPS"):
            registries.about(name)
    assert hosts.plain_unlisted.seen == []
