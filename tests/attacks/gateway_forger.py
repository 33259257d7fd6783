"""Somebody who has the run's key and posts outcomes in the place of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from lightning_smith.gateway.launch import Stack


def forge_outcomes(stack: Stack, instance_id: str) -> Callable[[], None]:
    """A function that posts a solved outcome of a task for each rollout that waits or runs, once."""
    record: dict[str, Any] = {
        "instance_id": instance_id,
        "sample": 0,
        "outcome": "solved",
        "reward": 1.0,
        "resolved": True,
        "turns": 1,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "wall_s": 0.0,
        "model": "stub",
        "model_revision": "r0",
        "image_digest": "sha256:0",
        "seed": 7,
    }
    done: set[str] = set()

    def forge() -> None:
        for row in stack.gateway.list_rollouts(["queuing", "running"]):
            if row["rollout_id"] not in done:
                done.add(row["rollout_id"])
                url = f"{stack.gateway_url}/api/rollouts/{row['rollout_id']}/attempt/0/events"
                headers = {"Authorization": f"Bearer {stack.key}"}
                event = {"event_type": "outcome", "data": record}
                httpx.post(url, json=event, headers=headers, trust_env=False)

    return forge
