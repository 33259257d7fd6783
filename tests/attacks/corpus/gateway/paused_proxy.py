"""Pauses, with the run's key, the proxy for all rollouts."""

import httpx
from attack import GatewayAttack


def run(stack) -> bool:
    """Whether the proxy was paused."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    body = {"reason": "x", "retry_after_seconds": 1}
    httpx.post(f"{stack.gateway_url}/proxy/pause", json=body, headers=headers, trust_env=False)
    paused = stack.gateway.state()["paused"]
    stack.gateway.resume()
    return paused


ATTACK = GatewayAttack(
    run,
    stays_possible="one key opens the whole gateway: who has it, which no command does, can speak for every rollout",
)
