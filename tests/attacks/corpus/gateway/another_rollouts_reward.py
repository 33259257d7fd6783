"""Posts a reward event for a rollout that is not its own, which has reported an outcome and waits for its reward."""

from attack import GatewayAttack
from insider import record, running


def run(stack) -> bool:
    """Whether the gateway keeps the event."""
    with running(stack) as victim, running(stack) as attacker:
        assert victim.report("outcome", record("linger-1")) == 200
        event = {"event_type": "reward", "data": {"value": 1.0}}
        answers = attacker.try_both("POST", victim.events_path, event)
        return bool(victim.kept("reward")) or set(answers) != {403}


ATTACK = GatewayAttack(run)
