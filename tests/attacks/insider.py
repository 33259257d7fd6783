"""Somebody who has what the process of a rollout has: its two tokens and the gateway's address, and no key."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway_stack import AGENT

from lightning_smith.gateway.dispatch import ENV_MAP
from lightning_smith.gateway.launch import Stack
from lightning_smith.gateway.tokens import Role, mint

Headers = Iterable[tuple[str, str]]
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "seed": 1}


def bearer(token: str) -> Headers:
    """The headers that carry a token."""
    return [("Authorization", f"Bearer {token}")]


def send(
    stack: Stack, method: str, target: str, headers: Headers = (), body: Any = None
) -> tuple[int, bytes]:
    """Status and body of a request whose target and headers are sent as they are; bytes are no JSON either."""
    connection = http.client.HTTPConnection(urlsplit(stack.gateway_url).netloc, timeout=60)
    connection.putrequest(method, target)
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    for name, value in [*headers, ("Content-Type", "application/json"), ("Content-Length", str(len(data)))]:
        connection.putheader(name, value)
    connection.endheaders(data)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer


@dataclass(frozen=True)
class Insider:
    """A rollout that runs, seen from its own process."""

    stack: Stack
    rollout_id: str
    mode: str = "train"

    def token(self, role: Role) -> str:
        """What the controller gave this rollout (`test_a_rollout_has_its_tokens_and_nothing_else`)."""
        return mint(self.stack.key, self.rollout_id, "0", role)

    @property
    def events_path(self) -> str:
        return f"/api/rollouts/{self.rollout_id}/attempt/0/events"

    @property
    def completions_path(self) -> str:
        return f"/proxy/rollout/{self.rollout_id}/attempt/0/mode/{self.mode}/openai/v1/chat/completions"

    def try_both(self, method: str, target: str, body: Any = None) -> list[int]:
        """The statuses of a request with each of its tokens."""
        return [send(self.stack, method, target, bearer(self.token(role)), body)[0] for role in Role]

    def report(self, kind: str, data: dict[str, Any], path: str = "") -> int:
        """The status of posting an event as its own, or at another's path."""
        event = {"event_type": kind, "data": data}
        headers = bearer(self.token(Role.REPORT))
        return send(self.stack, "POST", path or self.events_path, headers, event)[0]

    def ask(self) -> int:
        """The status of a completion."""
        return send(self.stack, "POST", self.completions_path, bearer(self.token(Role.MODEL)), MESSAGES)[0]

    def kept(self, kind: str) -> list[dict[str, Any]]:
        """What the gateway holds of the rollout, asked with the key."""
        return [event["data"] for event in self.stack.gateway.events(self.rollout_id, event_type=kind)]


@contextmanager
def running(stack: Stack, task: str = "linger-1", is_train: bool = True) -> Iterator[Insider]:
    """A rollout in the controller's hands, which lasts until the gateway does not know it any more."""
    rollout_id = uuid.uuid4().hex
    creation = {
        "rollout_id": rollout_id,
        "input": {"instance_id": task, "sample": "0", "seed": "7", "grade": "1"},
        "is_train": is_train,
        "config": {"timeout_seconds": 600, "local": {"agent_class": AGENT, "env_map": ENV_MAP}},
    }
    stack.gateway.create_rollouts([creation])
    try:
        wait_for_state(stack, rollout_id, "running", "succeeded")
        yield Insider(stack, rollout_id, "train" if is_train else "val")
    finally:
        stack.gateway.delete(rollout_id)


def wait_for_state(stack: Stack, rollout_id: str, *states: str) -> None:
    """Wait until a rollout is in one of these states."""
    deadline = time.monotonic() + 60
    while stack.gateway.rollout(rollout_id)["status"]["state"] not in states:
        assert time.monotonic() < deadline, stack.gateway.rollout(rollout_id)
        time.sleep(0.05)


def record(instance_id: str, outcome: str = "solved", **changes: Any) -> dict[str, Any]:
    """The record of a rollout of sample 0 that a policy would like to have."""
    return {
        "instance_id": instance_id,
        "sample": 0,
        "outcome": outcome,
        "reward": float(outcome == "solved"),
        "resolved": outcome == "solved",
        "turns": 1,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "wall_s": 0.0,
        "model": "stub",
        "model_revision": "r0",
        "image_digest": "sha256:0",
        "seed": 7,
        **changes,
    }
