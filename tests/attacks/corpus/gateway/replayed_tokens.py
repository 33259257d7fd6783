"""Posts, with the run's key, a model request of its own making: token ids that the policy never sampled."""

import httpx
from attack import GatewayAttack


def run(stack) -> bool:
    """Whether the gateway hands the invented tokens out as training data."""
    stack.gateway.create_rollouts([{"rollout_id": "victim", "input": {"instance_id": "x"}, "is_train": True}])
    choice = {
        "token_ids": [4, 5],
        "message": {"content": "x"},
        "logprobs": {"content": [{"logprob": 0.0}] * 2},
    }
    data = {"request": {"messages": []}, "response": {"prompt_token_ids": [1, 2, 3], "choices": [choice]}}
    url = f"{stack.gateway_url}/api/rollouts/victim/attempt/0/events"
    event = {"event_type": "model_request", "data": data}
    httpx.post(url, json=event, headers={"Authorization": f"Bearer {stack.key}"}, trust_env=False)
    kept = stack.gateway.events("victim", event_type="model_request")
    stack.gateway.delete("victim")
    return bool(kept)


ATTACK = GatewayAttack(
    run,
    stays_possible="one key opens the whole gateway: who has it, which no command does, can speak for every rollout",
)
