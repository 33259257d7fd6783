"""Posts, with the run's key, the outcome of a rollout that is not its own."""

from attack import GatewayAttack
from gateway_forger import forge_outcomes
from gateway_stack import AGENT

from lightning_smith.gateway.dispatch import RolloutRequest, dispatch


def run(stack) -> bool:
    """Whether the forged outcome counts."""
    forge = forge_outcomes(stack, instance_id="silent-1")
    (finished,) = dispatch(
        stack.gateway, [RolloutRequest("silent-1", 0, 7)], check=forge, agent=AGENT, retries=0
    )
    return finished.record.reward == 1


ATTACK = GatewayAttack(
    run,
    stays_possible="one key opens the whole gateway: who has it, which no command does, can speak for every rollout",
)
