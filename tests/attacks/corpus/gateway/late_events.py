"""Posts a better outcome and a reward, with the run's key, after its rollout has ended."""

import httpx
from attack import GatewayAttack
from gateway_stack import AGENT

from lightning_smith.gateway.dispatch import RolloutRequest, dispatch


def run(stack) -> bool:
    """Whether the rollout's record, or what the gateway tells of it, is another one afterwards."""
    before = set()

    def remember() -> None:
        before.update(row["rollout_id"] for row in stack.gateway.list_rollouts(["queuing", "running"]))

    (finished,) = dispatch(
        stack.gateway, [RolloutRequest("fail-1", 0, 7)], check=remember, agent=AGENT, keep_events=True
    )
    assert finished.record.reward == 0 and before
    with httpx.Client(
        base_url=stack.gateway_url, headers={"Authorization": f"Bearer {stack.key}"}, trust_env=False
    ) as http:
        for rollout in before:
            record = {**finished.record.to_dict(), "outcome": "solved", "reward": 1.0, "resolved": True}
            for event in (
                {"event_type": "outcome", "data": record},
                {"event_type": "reward", "data": {"value": 1.0}},
            ):
                http.post(f"/api/rollouts/{rollout}/attempt/0/events", json=event)
    (again,) = dispatch(stack.gateway, [RolloutRequest("fail-1", 0, 7)], agent=AGENT)
    return finished.record.reward != 0 or again.record.reward != 0


ATTACK = GatewayAttack(run)
