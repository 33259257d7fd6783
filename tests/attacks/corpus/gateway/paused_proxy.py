"""Pauses the proxy for all rollouts, or resumes it while the trainer holds it, with its own tokens."""

from attack import GatewayAttack
from insider import running


def run(stack) -> bool:
    """Whether the proxy's state was read or changed."""
    body = {"reason": "x", "retry_after_seconds": 1}
    with running(stack) as attacker:
        answers = attacker.try_both("POST", "/proxy/pause", body)
        paused = stack.gateway.state()["paused"]
        stack.gateway.pause("new weights")
        answers += attacker.try_both("POST", "/proxy/resume") + attacker.try_both("GET", "/proxy/state")
        resumed = not stack.gateway.state()["paused"]
        stack.gateway.resume()
    return paused or resumed or set(answers) != {403}


ATTACK = GatewayAttack(run)
