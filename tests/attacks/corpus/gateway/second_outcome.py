"""Reports its own outcome, then a better one, a better reward, and the reward a second time."""

from attack import GatewayAttack
from insider import record, running


def run(stack) -> bool:
    """Whether anything but the first outcome and its own reward is kept."""
    bad, good = record("linger-1", "unsolved"), record("linger-1")
    with running(stack) as attacker:
        answers = [attacker.report("reward", {"value": 1.0})]
        assert attacker.report("outcome", bad) == 200
        answers.append(attacker.report("outcome", good))
        better = ({"value": 1.0}, {"value": True}, {"value": "0.0"}, {"value": None}, {}, {"value": False})
        answers += [attacker.report("reward", data) for data in better]
        answers.append(attacker.report("reward", {"value": 0.0, "source": "agent"}))
        assert attacker.report("reward", {"value": 0.0}) == 200
        answers += [attacker.report("reward", {"value": 1.0}), attacker.report("outcome", good)]
        # The same again, as after a broken connection, is answered and not kept.
        assert attacker.report("outcome", bad) == attacker.report("reward", {"value": 0.0}) == 200
        kept = attacker.kept("outcome"), attacker.kept("reward")
    with running(stack) as attacker:
        assert attacker.report("outcome", record("linger-1", "infra", reward=None, resolved=None)) == 200
        answers += [attacker.report("reward", {"value": value}) for value in (1.0, 0.0, None)]
        without = attacker.kept("reward")
    return kept != ([bad], [{"value": 0.0}]) or bool(without) or set(answers) != {403}


ATTACK = GatewayAttack(run)
