"""Posts a model request of its own making, token ids that the policy never sampled, for its own rollout and another's."""

from attack import GatewayAttack
from insider import running


def run(stack) -> bool:
    """Whether the gateway hands the invented tokens out as training data."""
    choice = {
        "token_ids": [4, 5],
        "message": {"content": "x"},
        "logprobs": {"content": [{"logprob": 0.0}] * 2},
    }
    response = {"prompt_token_ids": [9, 9, 9], "choices": [choice]}
    with running(stack) as victim, running(stack) as attacker:
        answers = []
        for path in (attacker.events_path, victim.events_path):
            for kind in (
                "model_request",
                "Model_Request",
                "model_request ",
                "outcome\0",
                "",
                None,
                7,
                ["reward"],
            ):
                event = {"event_type": kind, "data": {"request": {"messages": []}, "response": response}}
                answers += attacker.try_both("POST", path, event)
        events = [event for row in (victim, attacker) for event in stack.gateway.events(row.rollout_id)]
        invented = [event for event in events if event["data"].get("prompt_token_ids") == [9, 9, 9]]
        others = [event for event in events if event["event_type"] != "model_request"]
    return bool(invented or others) or set(answers) != {403}


ATTACK = GatewayAttack(run)
