"""Reports, with the run's key, the outcome of a rollout of another task as its own."""

from attack import GatewayAttack
from gateway_forger import forge_outcomes
from gateway_stack import AGENT

from lightning_smith.gateway.dispatch import RolloutRequest, dispatch


def run(stack) -> bool:
    """Whether the foreign record was taken for the rollout's."""
    forge = forge_outcomes(stack, instance_id="ok-1")
    (finished,) = dispatch(
        stack.gateway, [RolloutRequest("silent-1", 0, 7)], check=forge, agent=AGENT, retries=0
    )
    assert "reported the outcome of ok-1" in (finished.record.error or "")
    return finished.record.reward is not None


ATTACK = GatewayAttack(run)
