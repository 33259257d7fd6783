"""Posts, with the run's key, a reward event for a rollout that is not its own."""

import httpx
from attack import GatewayAttack


def run(stack) -> bool:
    """Whether the gateway keeps the event."""
    stack.gateway.create_rollouts([{"rollout_id": "victim", "input": {"instance_id": "x"}, "is_train": True}])
    url = f"{stack.gateway_url}/api/rollouts/victim/attempt/0/events"
    event = {"event_type": "reward", "data": {"value": 1.0}}
    httpx.post(url, json=event, headers={"Authorization": f"Bearer {stack.key}"}, trust_env=False)
    kept = stack.gateway.events("victim", event_type="reward")
    stack.gateway.delete("victim")
    return bool(kept)


ATTACK = GatewayAttack(
    run,
    stays_possible="one key opens the whole gateway: who has it, which no command does, can speak for every rollout",
)
