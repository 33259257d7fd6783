"""Reports many different outcomes, and then many rewards, at the same moment."""

from concurrent.futures import ThreadPoolExecutor

from attack import GatewayAttack
from insider import record, running


def run(stack) -> bool:
    """Whether more than one outcome or reward is kept."""
    with running(stack) as attacker, ThreadPoolExecutor(16) as pool:
        outcomes = [record("linger-1", error="x" * 1000 * turns, turns=turns) for turns in range(32)]
        answers = list(pool.map(lambda data: attacker.report("outcome", data), outcomes))
        rewards = list(pool.map(lambda _: attacker.report("reward", {"value": 1.0}), outcomes))
        kept = len(attacker.kept("outcome")), len(attacker.kept("reward"))
    assert set(rewards) == {200}
    return kept != (1, 1) or sorted(answers) != [200] + [403] * 31


ATTACK = GatewayAttack(run)
