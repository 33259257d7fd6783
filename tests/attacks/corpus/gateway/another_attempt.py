"""Uses its tokens at another attempt's address, and those of another attempt at its own."""

from attack import GatewayAttack
from insider import MESSAGES, bearer, record, running, send

from lightning_smith.gateway.tokens import Role, mint


def run(stack) -> bool:
    """Whether anything was answered or kept."""
    outcome = {"event_type": "outcome", "data": record("linger-1")}
    with running(stack) as attacker:
        answers = attacker.try_both("POST", attacker.events_path.replace("attempt/0", "attempt/1"), outcome)
        answers += attacker.try_both(
            "POST", attacker.completions_path.replace("attempt/0", "attempt/1"), MESSAGES
        )
        for role, path, body in (
            (Role.REPORT, attacker.events_path, outcome),
            (Role.MODEL, attacker.completions_path, MESSAGES),
        ):
            other = mint(stack.key, attacker.rollout_id, "1", role)
            for target in (path, path.replace("attempt/0", "attempt/1")):
                answers.append(send(stack, "POST", target, bearer(other), body)[0])
        attempts = stack.gateway._call("GET", f"/api/rollouts/{attacker.rollout_id}")["attempts"]
        kept = attacker.kept("outcome")
    return bool(kept) or attempts not in ([], ["0"]) or set(answers) != {403}


ATTACK = GatewayAttack(run)
