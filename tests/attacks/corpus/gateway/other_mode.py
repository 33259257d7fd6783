"""Asks the policy in the mode, and so at the temperature, that its rollout was not created with."""

from attack import GatewayAttack
from insider import MESSAGES, running


def run(stack) -> bool:
    """Whether the policy answered in another mode."""
    answers = []
    for is_train, other in ((True, "val"), (False, "train")):
        with running(stack, is_train=is_train) as attacker:
            assert attacker.ask() == 200
            for mode in (other, "", "VAL", "test", f"{attacker.mode}/mode/{other}"):
                path = attacker.completions_path.replace(f"mode/{attacker.mode}", f"mode/{mode}")
                answers += attacker.try_both("POST", path, MESSAGES)
    return set(answers) != {403}


ATTACK = GatewayAttack(run)
