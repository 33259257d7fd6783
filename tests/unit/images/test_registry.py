"""What is read of registries and of the committed table, without either."""

from __future__ import annotations

import datetime
import email.utils
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.images.insecure import InsecureHosts
from lightning_smith.images.known import KnownImage, read_known
from lightning_smith.images.registry import (
    Registries,
    RegistryError,
    _for_platform,
    _retry_after_s,
    through_mirror,
)
from lightning_smith.images.transport import distrust

REPOSITORY = Path(__file__).resolve().parents[3]
HEADER = "image\tdigest\tcompressed_bytes\tunpacked_bytes\n"
DIGEST = "sha256:" + "a" * 64


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after_s("120") == 120 and _retry_after_s(None) is None and _retry_after_s("soon") is None
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
    assert _retry_after_s(email.utils.format_datetime(later, usegmt=True)) == pytest.approx(90, abs=2)
    assert _retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == _retry_after_s("Wed, 21 Oct 2015 07:28:00") == 0


class Answers(BaseHTTPRequestHandler):
    """What a test says for the first of the paths that a request's path holds."""

    said: ClassVar[dict[str, tuple[int, dict[str, str], str]]] = {}

    def do_GET(self) -> None:
        found = (answer for part, answer in self.said.items() if part in self.path)
        status, headers, body = next(found, (404, {}, ""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value.format(host=f"127.0.0.1:{self.server.server_address[1]}"))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


TOKEN = (401, {"WWW-Authenticate": 'Bearer realm="http://{host}/token"'}, "")
NO_LAYERS = '{"layers": [], "config": {"digest": "sha256:c"}}'


@pytest.mark.parametrize(
    "said",
    [
        {"manifests": (200, {}, NO_LAYERS), "blobs": (200, {}, "<html>")},
        {"manifests": (200, {}, NO_LAYERS), "blobs": (200, {}, "[]")},
        {"manifests": (200, {}, NO_LAYERS.replace("[]", "[{}]")), "blobs": (200, {}, '{"architecture": "amd64"}')},
        {"manifests": (200, {}, '{"layers": []}')},
        {"manifests": (200, {}, '{"manifests": null}')},
        {"manifests": (200, {}, '{"manifests": ["x"]}')},
        {"manifests": TOKEN, "token": (200, {}, "<html>")},
        {"manifests": TOKEN, "token": (200, {}, "[]")},
        {"manifests": (401, {"WWW-Authenticate": 'Bearer realm="::::"'}, "")},
    ],
)  # fmt: skip
def test_answers_that_no_registry_gives(host: str, said: dict[str, tuple[int, dict[str, str], str]]) -> None:
    Answers.said = said
    with (
        Registries() as registries,
        pytest.raises(RegistryError, match=r"answers for .* as no registry does") as caught,
    ):
        registries.about(f"{host}/acme/x")
    assert caught.value.passing, "a page of a proxy may go"


def test_the_daemons_list_of_insecure_registries() -> None:
    indexes = {"docker.io": {"Secure": True}, "a.b:5000": {"Secure": False}, "127.0.0.1:1": {"Secure": True}}
    networks = ["127.0.0.0/8", "::1/128", "192.0.2.0/24"]
    insecure = InsecureHosts({"RegistryConfig": {"IndexConfigs": indexes, "InsecureRegistryCIDRs": networks}})
    hosts = ("a.b:5000", "127.0.0.1:2", "localhost:5000", "192.0.2.7", "192.0.2.7:5000")
    assert [host for host in hosts if host not in insecure] == []
    others = ("docker.io", "a.b:5001", "a.b", "127.0.0.1:1", "192.0.3.1:5000", "no.such.host.invalid:5000")
    assert [host for host in others if host in insecure] == []
    assert "127.0.0.1:5" not in InsecureHosts({}) and "127.0.0.1:5" in InsecureHosts()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Get https://h:1/v2/: http: server gave HTTP response to HTTPS client",
            "registry h:1 speaks HTTP, and",
        ),
        (
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            "certs.d/h:1/ca.crt",
        ),
        ("connection refused", None),
    ],
)
def test_what_the_daemon_says_of_registries_that_it_does_not_trust(text: str, said: str | None) -> None:
    found = distrust("h:1", text)
    assert (found is None) if said is None else (said in str(found) and 'add "h:1" to' in str(found))


@pytest.mark.parametrize(
    ("name", "mirror", "expected"),
    [
        ("swebench/x", None, "swebench/x"),
        ("swebench/x:t", "m:5000/hub/", "m:5000/hub/swebench/x:t"),
        ("docker.io/swebench/x", "m:5000", "m:5000/swebench/x"),
        ("host:1/acme/x", "m:5000", "host:1/acme/x"),
    ],
)
def test_a_mirror_stands_for_docker_hub_alone(name: str, mirror: str | None, expected: str) -> None:
    assert through_mirror(name, mirror) == expected


def test_an_index_names_the_image_of_this_platform() -> None:
    arm = {"digest": "sha256:1", "platform": {"os": "linux", "architecture": "arm64"}}
    amd = {"digest": "sha256:2", "platform": {"os": "linux", "architecture": "amd64"}}
    attestation = {"digest": "sha256:3", "platform": {"os": "unknown", "architecture": "unknown"}}
    assert _for_platform("x", {"manifests": [arm, attestation, amd]}) == "sha256:2"
    with pytest.raises(UserError, match="the image x is for linux/arm64, not for linux/amd64"):
        _for_platform("x", {"manifests": [arm, attestation]})


def test_the_table_of_known_images(tmp_path: Path) -> None:
    table = tmp_path / "images.tsv"
    assert read_known(table) == {}
    table.write_text(f"# a comment\n{HEADER}swesmith.x.a__b.c\t{DIGEST}\t10\t20\n")
    assert read_known(table) == {"swesmith.x.a_1776_b.c": KnownImage(DIGEST, 10, 20)}
    for row in (f"x\t{DIGEST}\t1\t", "x\tsha256:1\t1\t1", f"x\t{DIGEST}\t-1\t1"):
        table.write_text(f"{HEADER}{row}\n")
        with pytest.raises(UserError, match=r"images.tsv, row x: needs sha256"):
            read_known(table)
    table.write_text(f"{HEADER}x\t{DIGEST}\t1\t1\norg/x\t{DIGEST}\t1\t1\n")
    with pytest.raises(UserError, match="a second time"):
        read_known(table)
    for raw in (b"\xe9x", b"X"):
        table.write_bytes(HEADER.encode() + raw + f"\t{DIGEST}\t1\t1\n".encode())
        with pytest.raises(UserError, match=r"images.tsv, row .*: image .* has a malformed repository"):
            read_known(table)
    table.write_text(f"\ufeff{HEADER}x\t{DIGEST}\t1\t1\n")
    assert list(read_known(table)) == ["x"]
    table.write_text("image\n")
    with pytest.raises(UserError, match="must have the columns image, digest"):
        read_known(table)


def test_the_committed_table_can_be_read() -> None:
    read_known(REPOSITORY / "assets/images/images.tsv")
