"""A hub for the real client: what huggingface_hub asks of one for the files of a data set, with faults on demand."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "e" * 40
CHUNK_TOKEN = "/api/xet-read-token"


@dataclass(frozen=True)
class Fault:
    """What one request gets instead of its answer."""

    status: int = 0
    """An HTTP status, 0 for a body that breaks off."""
    headers: dict[str, str] = field(default_factory=dict)
    after_bytes: int = 0
    """Of the body, before the connection breaks."""
    reset: bool = False
    """The connection breaks with a reset, not with an end."""


@dataclass(frozen=True)
class Request:
    """One that the server saw."""

    method: str
    name: str
    range: str | None
    token: str | None
    host: str | None
    """Named in the request line, as proxies are asked; None for a server's own answer."""


class HubServer:
    """Files of a folder as a data set's at COMMIT, in large-file storage: `resolve` redirects to the blob,
    which another port serves.

    It answers as well as the proxy of any host, from its own files.
    `served` may differ from `announced`, whose hashes the headers give. `faults` are used up in order, by method.
    With `chunk_service`, an address, clients that know chunked storage are sent there for a file's bytes; with an empty
    one, they are refused the token for it.
    """

    def __init__(self, folder: Path) -> None:
        self.announced = {
            str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))
        }
        self.served = dict(self.announced)
        self.faults: dict[str, list[Fault]] = {"HEAD": [], "GET": []}
        self.token: str | None = None
        self.chunk_service: str | None = None
        self.requests: list[Request] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                server._answer(self)

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        self.endpoint, self._storage = (f"http://127.0.0.1:{each.server_port}" for each in self._servers)
        for each in self._servers:
            threading.Thread(target=each.serve_forever, daemon=True).start()

    def close(self) -> None:
        for each in self._servers:
            each.shutdown()
            each.server_close()

    @property
    def bodies(self) -> list[str]:
        """Names of the files whose body was asked for, in order."""
        return [request.name for request in self.requests if request.method == "GET"]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        method, host, path = handler.command, None, handler.path
        if path.startswith("http://"):
            host, _, path = path.removeprefix("http://").partition("/")
            path = f"/{path}"
        if path == CHUNK_TOKEN and self.chunk_service:
            headers = {"X-Xet-Cas-Url": self.chunk_service, "X-Xet-Access-Token": "chunks"}
            return self._send(handler, 200, {**headers, "X-Xet-Token-Expiration": "9999999999"})
        _, _, rest = path.partition("/blob/" if path.startswith("/blob/") else "/resolve/")
        revision, _, name = rest.partition("/")
        token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        if path.startswith("/blob/") or method == "HEAD":
            self.requests.append(Request(method, name, handler.headers.get("Range"), token, host))
            if self.faults[method]:
                fault = self.faults[method].pop(0)
                if fault.status:
                    return self._send(handler, fault.status, fault.headers)
                return self._break_off(handler, name, fault)
        if self.token and token != self.token and not path.startswith("/blob/"):
            return self._send(
                handler, 401, {"X-Error-Message": "Invalid credentials in Authorization header"}
            )
        if revision != COMMIT:
            return self._send(handler, 404, {"X-Error-Code": "RevisionNotFound"})
        if name not in self.served:
            return self._send(handler, 404, {"X-Error-Code": "EntryNotFound"})
        if path.startswith("/blob/"):
            return self._send_body(handler, name)
        digest = hashlib.sha256(self.announced[name]).hexdigest()
        headers = {
            "Location": f"{self._storage}/blob/{revision}/{name}",
            "ETag": f'"{digest}"',
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(self.announced[name])),
            "X-Repo-Commit": COMMIT,
        }
        if self.chunk_service is not None:
            headers |= {"X-Xet-Hash": digest, "X-Xet-Refresh-Route": f"{self.endpoint}{CHUNK_TOKEN}"}
        return self._send(handler, 302, headers)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for key, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(key, value)
        handler.end_headers()

    def _part(self, handler: BaseHTTPRequestHandler, name: str) -> bytes:
        """Status and headers of the whole file or of the range asked for; returns its bytes."""
        data, asked = self.served[name], handler.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        handler.send_response(206 if asked else 200)
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        return data[start:]

    def _send_body(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        data = self._part(handler, name)
        if handler.command == "GET":
            handler.wfile.write(data)

    def _break_off(self, handler: BaseHTTPRequestHandler, name: str, fault: Fault) -> None:
        handler.wfile.write(self._part(handler, name)[: fault.after_bytes])
        handler.wfile.flush()
        if fault.reset:
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.connection.close()
        handler.close_connection = True
