"""Agent Lightning's gateway behind a guard: the run's key opens all of it, a rollout's tokens what is that rollout's.

    python -m lightning_smith.gateway.server host=127.0.0.1 port=8080 key=- hydra.run.dir=. < key

Takes the configuration of `agl-server`; a key of `-` is read from standard input (`key.py`). The application is the one
of the installed wheel, and the guard runs in its process, so that a request takes no further hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import hydra
import structlog
import uvicorn
from agentlightning.server.app import create_app
from fastapi import FastAPI
from omegaconf import DictConfig

from lightning_smith.agent.chat import NOT_TEXT
from lightning_smith.core.errors import exit_on_user_error
from lightning_smith.core.text import encodable
from lightning_smith.gateway.admission import (
    Call,
    RefusedError,
    allowed_call,
    credential,
    kept_report,
    parse_report,
    shows_key,
)
from lightning_smith.gateway.key import keep_out_of_logs, read_key
from lightning_smith.gateway.tokens import Grant, Role, read

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGGED_PATH_CHARACTERS = 200
_MAY_HOLD_SURROGATES = re.compile(rb"\\[uU][dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Escaped, or as bytes that json.loads takes although UTF-8 has none of them."""

log = structlog.get_logger()


class Guard:
    """ASGI application that lets requests through to another one.

    With the key they pass as they are. With a rollout's token (`admission.py`) a request of the guard's own making
    passes: the path that the token allows, the body, the key, and no other header.
    """

    def __init__(self, application: Application, key: str) -> None:
        self._application, self._key = application, key
        self._reports = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":  # the gateway has no WebSockets
            await send({"type": "websocket.close", "code": 1008})
            return
        grant: Grant | None = None
        try:
            if (scope["method"], scope["raw_path"]) == ("GET", b"/healthz"):
                await self._application(scope, receive, send)
                return
            if shows_key(scope["headers"], self._key):
                await self._application(scope, receive, send)
                return
            grant = read(self._key, credential(scope["headers"]))
            if grant is None:
                raise RefusedError(401, "this is neither the gateway's key nor a token of a rollout")
            call = allowed_call(grant, scope["method"], scope["raw_path"], scope["query_string"])
            body = await _read_body(scope, receive, call)
            if grant.role is Role.REPORT:
                await self._report(grant, call, parse_report(body), scope, receive, send)
            else:
                await self._application(self._request(scope, call, body), _replay(body, receive), send)
        except RefusedError as error:
            log.warning(
                "Request refused",
                rollout_id=grant.rollout_id if grant else None,
                method=scope["method"],
                path=scope["raw_path"][:LOGGED_PATH_CHARACTERS].decode("ascii", "backslashreplace"),
                status=error.status,
                reason=str(error),
            )
            await _answer(send, error.status, json.dumps({"detail": str(error)}).encode())

    async def _report(
        self, grant: Grant, call: Call, report: dict[str, Any], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Keep a report once, whatever else the rollout posts at the same moment."""
        body = json.dumps(report).encode()
        answer: list[Message] = []

        async def collect(message: Message) -> None:
            answer.append(message)

        # The answer is sent after the lock is free: a client that does not read it holds nobody up.
        async with self._reports:
            kept = kept_report(grant, report)
            if kept is None:
                await self._application(self._request(scope, call, body), _replay(body, receive), collect)
        if kept is not None:
            await _answer(send, 200, kept.model_dump_json().encode())
        for message in answer:
            await send(message)

    def _request(self, scope: Scope, call: Call, body: bytes) -> Scope:
        headers = [
            (b"authorization", b"Bearer " + self._key.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        path = call.path
        return {**scope, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}


async def _read_body(scope: Scope, receive: Receive, call: Call) -> bytes:
    """Return the whole body; RefusedError as soon as it is too large."""
    too_large = RefusedError(413, f"the body of this call has at most {call.max_bytes:,} bytes")
    announced = dict(scope["headers"]).get(b"content-length", b"")
    if announced.isdigit() and int(announced[:20]) > call.max_bytes:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the connection ended before the body did")
        body += message.get("body", b"")
        if len(body) > call.max_bytes:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, and then what else comes: the end of the connection."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def keep_text_encodable(client: httpx.AsyncClient) -> None:
    """Have a client answer with text where a policy's completion holds lone surrogates, and mark the choice.

    The gateway can neither pass such a completion on nor list it among a rollout's events: both fail with 500, at
    every attempt, since the rollout's seed draws the same completion again.
    """
    post = client.post

    async def post_for_text(*arguments: Any, **options: Any) -> httpx.Response:
        response = await post(*arguments, **options)
        body = _as_text(response.content)
        if body is None:
            return response
        return httpx.Response(
            response.status_code,
            headers={"content-type": response.headers.get("content-type", "")},
            content=body,
            request=response.request,
        )

    client.post = post_for_text


def _as_text(body: bytes) -> bytes | None:
    """Return a JSON body with U+FFFD for its lone surrogates and its choices marked; None if it has none, or is no
    JSON.
    """
    if not _MAY_HOLD_SURROGATES.search(body):
        return None
    try:
        raw = json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return None
    if (text := encodable(raw)) == raw:
        return None
    answer = json.loads(text)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            choice[NOT_TEXT] = True
    return json.dumps(answer).encode()


@hydra.main(version_base=None, config_path="pkg://agentlightning.config", config_name="server")
def main(config: DictConfig) -> None:
    """Serve until a signal; the same options of uvicorn as `agl-server`."""
    keep_out_of_logs()
    with exit_on_user_error():
        config.key = read_key("key", str(config.key or ""))
        gateway = create_app(config)
        start = gateway.router.lifespan_context

        @contextlib.asynccontextmanager
        async def started(app: FastAPI) -> AsyncIterator[None]:
            async with start(app):
                keep_text_encodable(app.state.http_client)
                yield

        gateway.router.lifespan_context = started
        application = Guard(gateway, config.key)
    uvicorn.run(application, host=str(config.host), port=int(config.port), workers=1, timeout_keep_alive=120)


if __name__ == "__main__":
    main()  # pyright: ignore[reportCallIssue] (hydra passes the configuration)
