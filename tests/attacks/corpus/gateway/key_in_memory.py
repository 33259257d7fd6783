"""Searches the memory, environment and open files of its rollout's process, and of the one that it was forked from, for
the run's key and for tokens of other rollouts."""

from attack import GatewayAttack
from gateway_stack import AGENT

from lightning_smith.gateway.dispatch import RolloutRequest, dispatch


def run(stack) -> bool:
    """Whether something was found."""
    requests = [RolloutRequest("search-1", sample, 7) for sample in range(4)]
    finished = list(dispatch(stack.gateway, requests, agent=AGENT, retries=0))
    said = [result.record.error or "" for result in finished]
    assert all(text.startswith("own tokens found: 2;") for text in said), said
    return any("GAINED" in text for text in said)


ATTACK = GatewayAttack(run)
