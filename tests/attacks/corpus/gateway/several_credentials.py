"""Sends several keys and tokens in one request, its own among them, in both headers and in both orders."""

from itertools import permutations

from attack import GatewayAttack
from insider import record, running, send

from lightning_smith.gateway.tokens import Role


def run(stack) -> bool:
    """Whether a request with more than one of them, or with a garbled one, was let through."""
    outcome = {"event_type": "outcome", "data": record("linger-1")}
    with running(stack) as victim, running(stack) as attacker:
        token = attacker.token(Role.REPORT)
        headers = (
            ("Authorization", f"Bearer {token}"),
            ("X-API-Key", token),
            ("X-API-Key", "guess"),
            ("authorization", "Bearer guess"),
            ("X-Api-Key", attacker.token(Role.MODEL)),
        )
        attempts = [list(pair) for pair in permutations(headers, 2)]
        for garbled in (
            token,
            f"bearer {token}",
            f"Bearer  {token}",
            f"Basic {token}",
            f"Bearer {token} x",
            "Bearer",
        ):
            attempts.append([("Authorization", garbled)])
        attempts += [[("Cookie", f"key={token}")], [("Proxy-Authorization", f"Bearer {token}")], []]
        answers = [
            send(stack, "POST", path, attempt, outcome)[0]
            for path in (attacker.events_path, victim.events_path)
            for attempt in attempts
        ]
        kept = attacker.kept("outcome") + victim.kept("outcome")
    return bool(kept) or set(answers) != {401}


ATTACK = GatewayAttack(run)
