"""The guarded gateway beside Agent Lightning's own server, both as processes: who gets what on every route."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentlightning.server.app import create_app
from gateway_stack import StubPolicy

from lightning_smith.core.process import free_port
from lightning_smith.gateway.tokens import Role, mint

pytestmark = pytest.mark.e2e

KEY = f"sk-run-{secrets.token_hex(16)}"
ID = "r1"
ATTEMPT = f"/api/rollouts/{ID}/attempt/0"
PROXY = f"/proxy/rollout/{ID}/attempt/0/mode/train/openai/v1"
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
OUTCOME = {"event_type": "outcome", "data": {"reward": 1.0}}

REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/healthz", None),
    (
        "POST",
        "/api/rollouts",
        [{"rollout_id": ID, "input": {"instance_id": "a"}}, {"rollout_id": "a.b", "input": 1}],
    ),
    ("POST", "/api/rollouts", {"rollout_id": ID}),
    ("GET", "/api/rollouts?state_in=queuing&state_in=running&limit=2", None),
    ("GET", "/api/rollouts", None),
    ("GET", f"/api/rollouts/{ID}", None),
    ("GET", "/api/rollouts/absent", None),
    ("PATCH", f"/api/rollouts/{ID}", {"status": {"state": "running", "last_attempt_id": "0"}}),
    ("PATCH", f"/api/rollouts/{ID}", {"status": {"state": "queuing"}}),
    ("POST", f"{PROXY}/chat/completions", CHAT),
    ("POST", "/api/models", [{"model": "stub", "endpoint": "ENDPOINT"}]),
    ("POST", f"{PROXY}/chat/completions", CHAT),
    ("POST", f"{PROXY}/completions", {**CHAT, "prompt": "x"}),
    ("POST", f"{PROXY}/embeddings", CHAT),
    ("POST", f"{PROXY}/chat/completions", "no object"),
    ("POST", f"{ATTEMPT}/events", {"event_type": "anything", "data": {"a": [None, "é"]}}),
    ("POST", f"{ATTEMPT}/events", {"event_type": "reward", "data": {"value": 0.5, "reason": "x"}}),
    ("POST", f"{ATTEMPT}/events", {"data": 1}),
    ("GET", f"/api/rollouts/{ID}/events?format=triplet", None),
    ("GET", f"/api/rollouts/{ID}/events?event_type=reward", None),
    ("POST", "/proxy/pause", {"retry_after_seconds": 1, "reason": "x"}),
    ("GET", "/proxy/state", None),
    ("POST", f"{PROXY}/chat/completions", CHAT),
    ("POST", "/proxy/resume", None),
    ("PATCH", f"/api/rollouts/{ID}", {"status": {"state": "succeeded"}}),
    ("POST", f"{ATTEMPT}/events", {"event_type": "late", "data": {}}),
    ("GET", "/api/rollouts/terminal?after=0&limit=5", None),
    ("DELETE", "/api/models", None),
    ("DELETE", f"/api/rollouts/{ID}", None),
    ("DELETE", "/api/rollouts/a.b", None),
    ("GET", "/openapi.json", None),
    ("GET", "/docs", None),
    ("GET", "/docs/oauth2-redirect", None),
    ("GET", "/redoc", None),
    ("GET", "/absent", None),
    ("PUT", "/api/models", None),
    ("GET", "/healthz/", None),
]
"""One conversation that meets every route, with requests that are wrong among them."""

BEARER, PLAIN, OTHER = (
    ("authorization", f"Bearer {KEY}"),
    ("x-api-key", KEY),
    ("x-api-key", "guess-0123456789"),
)
OTHER_BEARER = ("Authorization", "Bearer guess-0123456789")


@dataclass
class Server:
    """A gateway and a client of it that adds no header of its own."""

    http: httpx.Client
    policy: str

    def ask(self, method: str, path: str, body: Any, headers: list[tuple[str, str]]) -> httpx.Response:
        if body and path == "/api/models":
            body = [{**row, "endpoint": self.policy} for row in body]
        return self.http.request(method, path, json=body, headers=headers)

    def conversation(self, headers: list[tuple[str, str]]) -> list[tuple[str, str, int, Any]]:
        """What every request is answered with, moments and durations left out."""
        answers = []
        for method, path, body in REQUESTS:
            got = self.ask(method, path, body, headers)
            kind = got.headers.get("content-type", "")
            answers.append(
                (
                    method,
                    path,
                    got.status_code,
                    timeless(got.json()) if got.text and "json" in kind else got.text,
                )
            )
        return answers


def timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if isinstance(value, dict):
        moments = (
            "timestamp",
            "created_at",
            "updated_at",
            "latency_ms",
            "next_after",
            "total_terminal",
            "items",
        )
        return {key: timeless(item) for key, item in value.items() if key not in moments}
    return value


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Agent Lightning's own server, and ours, before one policy."""
    with ExitStack() as stack:
        policy_port = free_port()
        started = [StubPolicy().command(policy_port)]
        ports = [free_port() for _ in range(2)]
        options = [
            "host=127.0.0.1",
            "default_proxy.model_name=stub",
            "hydra.output_subdir=null",
            "hydra.run.dir=.",
        ]
        for port, module, key in zip(
            ports, ("agentlightning.server", "lightning_smith.gateway.server"), (KEY, "-"), strict=True
        ):
            started.append([sys.executable, "-m", module, *options, f"port={port}", f"key={key}"])
        folder = tmp_path_factory.mktemp("servers")
        for number, command in enumerate(started):
            log = stack.enter_context((folder / f"{number}.log").open("wb"))
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder)
            )
            stack.callback(process.terminate)
            assert process.stdin
            process.stdin.write(KEY.encode() + b"\n")
            process.stdin.close()
        clients = [
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) for port in ports
        ]
        for client in clients:
            client.headers.clear()
            stack.callback(client.close)
            _await(client, folder)
        yield (
            Server(clients[0], f"http://127.0.0.1:{policy_port}/v1"),
            Server(clients[1], f"http://127.0.0.1:{policy_port}/v1"),
        )


def _await(client: httpx.Client, folder: Path) -> None:
    deadline_s = time.monotonic() + 120
    while True:
        try:
            if client.get("/healthz").status_code == 200:
                return
        except httpx.TransportError:
            assert time.monotonic() < deadline_s, [path.read_text() for path in folder.glob("*.log")]
            time.sleep(0.1)


def test_the_conversation_meets_every_route_of_the_application() -> None:
    proxy = {"model_name": "stub", "train": {"temperature": 1}, "val": {"temperature": 1}}
    paths = create_app({"key": KEY, "default_proxy": proxy}).openapi()["paths"]
    assert len(paths) >= 11
    for template, operations in paths.items():
        pattern = re.sub(r"\{\w+\}", ".+", template)
        asked = {method for method, path, _ in REQUESTS if re.fullmatch(pattern, path.partition("?")[0])}
        assert {operation.upper() for operation in operations} <= asked, template


@pytest.mark.parametrize(
    "headers",
    [
        [BEARER],
        [PLAIN],
        [BEARER, PLAIN],
        [BEARER, OTHER],
        [OTHER_BEARER, PLAIN],
        [BEARER, OTHER_BEARER],
        [("Authorization", "Basic eDp5"), PLAIN],
        [PLAIN, OTHER],
    ],
)
def test_the_key_gets_what_upstream_gives(
    servers: tuple[Server, Server], headers: list[tuple[str, str]]
) -> None:
    stock, ours = servers
    wanted = stock.conversation(headers)
    assert {status for _, _, status, _ in wanted} >= {200, 201, 204, 400, 404, 405, 409, 422, 429, 503}
    assert ours.conversation(headers) == wanted


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [OTHER],
        [OTHER_BEARER, BEARER],
        [OTHER, PLAIN],
        [("Authorization", f"bearer {KEY}")],
        [("Authorization", f"Bearer  {KEY}")],
        [("Authorization", KEY)],
        [("x-api-key", f"Bearer {KEY}")],
    ],
)
def test_nobody_else_gets_more_than_the_health(
    servers: tuple[Server, Server], headers: list[tuple[str, str]]
) -> None:
    """Upstream shows its documentation, and which paths exist, to anybody."""
    stock, ours = servers
    theirs = [
        status for _, path, status, _ in stock.conversation(headers) if path.startswith(("/api", "/proxy"))
    ]
    assert set(theirs) <= {401, 405}
    for _, path, status, answer in ours.conversation(headers):
        assert (status, list(answer)) == ((200, ["status"]) if path == "/healthz" else (401, ["detail"]))


@pytest.mark.parametrize("role", list(Role))
def test_a_token_opens_one_route(servers: tuple[Server, Server], role: Role) -> None:
    _, ours = servers
    ours.ask("POST", "/api/rollouts", [{"rollout_id": ID, "input": {}}], [BEARER])
    ours.ask("POST", "/api/models", [{"model": "stub"}], [BEARER])
    headers = [("Authorization", f"Bearer {mint(KEY, ID, '0', role)}")]
    opened = {Role.MODEL: (f"{PROXY}/chat/completions", CHAT), Role.REPORT: (f"{ATTEMPT}/events", OUTCOME)}[
        role
    ]
    assert ours.ask("POST", *opened, headers).status_code == 200
    for method, path, body in REQUESTS:
        if (method, path) not in (("POST", opened[0]), ("GET", "/healthz")):
            assert ours.ask(method, path, body, headers).status_code == 403, (method, path)
    ours.ask("DELETE", f"/api/rollouts/{ID}", None, [BEARER])
    assert ours.ask("POST", *opened, headers).status_code == 403
