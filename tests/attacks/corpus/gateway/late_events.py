"""Posts a better outcome, a reward and completions with its own tokens after its rollout has ended, and once more when it
is deleted."""

from attack import GatewayAttack
from insider import record, running, wait_for_state


def run(stack) -> bool:
    """Whether anything is answered, or what the gateway tells of the rollout is another thing afterwards."""
    with running(stack, "fail-1") as attacker:
        wait_for_state(stack, attacker.rollout_id, "succeeded")
        before = stack.gateway.events(attacker.rollout_id)
        assert [event["event_type"] for event in before] == ["outcome", "reward"]

        def late() -> list[int]:
            own = before[0]["data"]
            answers = [attacker.report("outcome", data) for data in (own, record("fail-1"))]
            answers += [attacker.report("reward", {"value": value}) for value in (0.0, 1.0)]
            return [*answers, attacker.ask()]

        answers = late()
        changed = stack.gateway.events(attacker.rollout_id) != before
        stack.gateway.delete(attacker.rollout_id)
        answers += late()
    return changed or set(answers) != {403}


ATTACK = GatewayAttack(run)
