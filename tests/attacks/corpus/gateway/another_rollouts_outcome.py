"""Posts the outcome of a rollout that is not its own, at that rollout's address and with its own tokens."""

from attack import GatewayAttack
from gateway_stack import AGENT
from insider import bearer, record, running, send

from lightning_smith.gateway.dispatch import RolloutRequest, dispatch
from lightning_smith.gateway.tokens import Role


def run(stack) -> bool:
    """Whether the forged outcome counts."""
    forged = {"event_type": "outcome", "data": record("silent-1")}
    answers = []
    with running(stack) as attacker:

        def forge() -> None:
            for row in stack.gateway.list_rollouts(["queuing", "running"]):
                if row["rollout_id"] != attacker.rollout_id:
                    path = f"/api/rollouts/{row['rollout_id']}/attempt/0/events"
                    answers.extend(
                        send(stack, "POST", path, bearer(attacker.token(role)), forged)[0] for role in Role
                    )

        requests = [RolloutRequest("silent-1", 0, 7)]
        (finished,) = dispatch(stack.gateway, requests, check=forge, agent=AGENT, retries=0)
    assert answers
    return finished.record.reward == 1 or set(answers) != {403}


ATTACK = GatewayAttack(run)
