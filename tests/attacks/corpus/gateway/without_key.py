"""Posts rewards, pauses the proxy, lists and deletes rollouts without the key, which commands do not have."""

import httpx
from attack import GatewayAttack


def run(stack) -> bool:
    """Whether any call was answered, or had an effect."""
    stack.gateway.create_rollouts([{"rollout_id": "victim", "input": {"instance_id": "x"}, "is_train": True}])
    reward = {"event_type": "reward", "data": {"value": 1.0}}
    calls = [
        ("POST", "/api/rollouts/victim/attempt/0/events", reward),
        ("GET", "/api/rollouts", None),
        ("GET", "/api/rollouts/victim/events", None),
        ("PATCH", "/api/rollouts/victim", {"state": "succeeded"}),
        ("DELETE", "/api/rollouts/victim", None),
        ("POST", "/proxy/pause", {"reason": "x", "retry_after_seconds": 600}),
        ("POST", "/proxy/rollout/victim/attempt/0/mode/train/openai/v1/chat/completions", {"messages": []}),
        ("POST", "/api/models", [{"model": "stub", "endpoint": "http://127.0.0.1:1/v1", "version": 9}]),
        ("DELETE", "/api/models", None),
    ]
    answers = []
    for headers in (
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer guess"},
        {"X-API-Key": "guess"},
    ):
        with httpx.Client(base_url=stack.gateway_url, headers=headers, trust_env=False) as http:
            answers += [http.request(method, path, json=body).status_code for method, path, body in calls]
    affected = stack.gateway.events("victim") or stack.gateway.state()["paused"]
    stack.gateway.delete("victim")
    return any(answer < 400 for answer in answers) or bool(affected)


ATTACK = GatewayAttack(run)
