"""A real registry on localhost, and a proxy before it that answers as busy, closed or broken ones do."""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from docker_daemon import give_up

from lightning_smith.core.process import free_port
from lightning_smith.images.daemon import Daemon

_HOP = {"connection", "transfer-encoding", "keep-alive"}


@dataclass
class Fault:
    """What the proxy does instead of passing on a request whose method and path match."""

    match: str
    """Regular expression for `GET /v2/…`."""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1_000_000
    cut: bool = False
    """Close the connection in the middle of the body."""
    bytes_per_s: float = 0.0
    """Pass the body on at this rate."""
    body: bytes | None = None
    without: str | None = None
    """Only for requests that lack this header Authorization."""

    def applies(self, line: str, handler: BaseHTTPRequestHandler) -> bool:
        known = self.without is not None and handler.headers.get("Authorization") == self.without
        return self.times > 0 and not known and re.search(self.match, line) is not None


class FaultyProxy:
    """`host` is what images are named with; `faults` may be changed while it runs; `seen` has all requests."""

    def __init__(self, upstream: int, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, float, str | None]] = []
        self.sent_bytes = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _pass(self) -> None:
                proxy.relay(self, upstream)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _pass  # noqa: N815

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.host = f"{address}:{self._server.server_address[1]}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def requests(self, pattern: str) -> list[tuple[str, float, str | None]]:
        return [seen for seen in self.seen if re.search(pattern, seen[0])]

    def relay(self, handler: BaseHTTPRequestHandler, upstream: int) -> None:
        line = f"{handler.command} {handler.path}"
        with self._lock:
            self.seen.append((line, time.monotonic(), handler.headers.get("Authorization")))
            fault = next((f for f in self.faults if f.applies(line, handler)), None)
            if fault is not None:
                fault.times -= 1
        chunked = handler.headers.get("Transfer-Encoding", "") == "chunked"
        body = (
            _chunks(handler) if chunked else handler.rfile.read(int(handler.headers["Content-Length"] or 0))
        )
        if fault is not None and fault.status:
            answer = fault.body or b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}'
            _answer(handler, fault.status, {**fault.headers, "Content-Length": str(len(answer))}, answer)
            return
        connection = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in (*_HOP, "authorization")}
        headers["Content-Length"] = str(len(body))
        connection.request(handler.command, handler.path, body, headers)
        response = connection.getresponse()
        content = b"" if handler.command == "HEAD" else response.read()
        kept = {k: v for k, v in response.getheaders() if k.lower() not in _HOP}
        if handler.command != "HEAD":
            kept["Content-Length"] = str(len(content))
        connection.close()
        if fault is not None and fault.cut:
            _answer(handler, response.status, kept, content[: len(content) // 2])
            handler.close_connection = True
            with contextlib.suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault is not None and fault.bytes_per_s:
            _answer(handler, response.status, kept, b"")
            for at in range(0, len(content), 4096):
                handler.wfile.write(content[at : at + 4096])
                time.sleep(4096 / fault.bytes_per_s)
            return
        self.sent_bytes += len(content)
        _answer(handler, response.status, kept, content)


def _answer(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
    handler.send_response_only(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def _chunks(handler: BaseHTTPRequestHandler) -> bytes:
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


@contextmanager
def faulty_registry(folder: Path) -> Iterator[FaultyProxy]:
    """Debian's docker-registry below `folder`, behind a proxy; skips where it is not installed."""
    with registry(folder) as port:
        proxy = FaultyProxy(port)
        try:
            yield proxy
        finally:
            proxy.close()


@contextmanager
def registry(folder: Path) -> Iterator[int]:
    """Debian's docker-registry below `folder`, at a port of 127.0.0.1; skips where it is not installed."""
    program = shutil.which("docker-registry")
    if program is None:
        give_up("there is no docker-registry (apt-get install docker-registry)")
        raise AssertionError
    port = free_port()
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}', relativeurls: true}}\n"
    )
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"docker-registry does not start: {(folder / 'registry.log').read_text()}")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def push(daemon: Daemon, image: str, name: str, tag: str = "latest") -> str:
    """Push an image of the daemon under another name, forget that name, and return the digest it got."""
    with daemon.asked(f"push {name}"):
        daemon.api.tag(image, name, tag)
        for event in daemon.api.push(
            name, tag, stream=True, decode=True, auth_config={"username": "", "password": ""}
        ):
            if "error" in event:
                pytest.fail(f"push of {name}: {event['error']}")
        about = daemon.api.inspect_image(f"{name}:{tag}")
        daemon.api.remove_image(f"{name}:{tag}")
    return next(text.partition("@")[2] for text in about["RepoDigests"] if text.startswith(f"{name}@"))
