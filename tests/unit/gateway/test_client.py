"""The gateway client against small real HTTP servers: what it says when something is wrong."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.process import free_port
from lightning_smith.gateway.client import Gateway, UnknownRolloutError


class Handler(BaseHTTPRequestHandler):
    answers: list[tuple[int, bytes] | None]
    seen: list[tuple[str, str, Any]]

    def log_message(self, *_: Any) -> None:
        pass

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.command, self.path, json.loads(body) if body else None))
        answer = self.answers.pop(0)
        if answer is None:  # drops the connection
            self.close_connection = True
            return
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(answer[1])))
        self.end_headers()
        self.wfile.write(answer[1])

    do_GET = do_POST = do_DELETE = serve  # noqa: N815


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.answers, Handler.seen = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def client(server: ThreadingHTTPServer) -> Gateway:
    return Gateway(f"http://127.0.0.1:{server.server_address[1]}/", "key", log=Path("logs/gateway.log"))


def test_broken_connection_is_retried(server: ThreadingHTTPServer) -> None:
    Handler.answers = [None, (201, b'[{"rollout_id": "a"}]')]
    assert client(server).create_rollouts([{"rollout_id": "a", "input": {}}]) == ["a"]
    assert len(Handler.seen) == 2


def test_absent_gateway_is_named_with_its_log() -> None:
    gateway = Gateway(f"http://127.0.0.1:{free_port()}", log=Path("logs/gateway.log"))
    assert not gateway.health()
    with pytest.raises(UserError, match=r"gateway at http://127\.0\.0\.1:\d+ does not answer .*gateway\.log"):
        gateway.state()


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (401, b"{}", "refuses the key"),
        (500, b"boom", "answered 500 to GET /proxy/state: boom"),
        (200, b"<html>", "is no Agent Lightning gateway"),
    ],
)
def test_answers_that_are_errors(server: ThreadingHTTPServer, status: int, body: bytes, text: str) -> None:
    Handler.answers = [(status, body)]
    with pytest.raises(UserError, match=text):
        client(server).state()


def test_unknown_rollout(server: ThreadingHTTPServer) -> None:
    Handler.answers = [(404, b"{}")]
    with pytest.raises(UnknownRolloutError, match="does not know rollout abc"):
        client(server).events("abc")


def test_rollouts_need_an_id(server: ThreadingHTTPServer) -> None:
    with pytest.raises(ValueError, match="created twice"):
        client(server).create_rollouts([{"input": {}}])


def test_closed_client_says_so(server: ThreadingHTTPServer) -> None:
    with client(server) as gateway:
        pass
    with pytest.raises(UserError, match="was closed"):
        gateway.delete("a")
