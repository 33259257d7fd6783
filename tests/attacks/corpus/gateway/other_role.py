"""Reports with the token for completions, and asks for completions with the token for reports."""

from attack import GatewayAttack
from insider import MESSAGES, bearer, record, running, send

from lightning_smith.gateway.tokens import Role


def run(stack) -> bool:
    """Whether a token did the other one's work."""
    outcome = {"event_type": "outcome", "data": record("linger-1")}
    with running(stack) as attacker:
        reported = send(stack, "POST", attacker.events_path, bearer(attacker.token(Role.MODEL)), outcome)[0]
        asked = send(stack, "POST", attacker.completions_path, bearer(attacker.token(Role.REPORT)), MESSAGES)[
            0
        ]
        kept = attacker.kept("outcome")
    return bool(kept) or (reported, asked) != (403, 403)


ATTACK = GatewayAttack(run)
