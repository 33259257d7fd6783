"""Makes tokens itself: with other keys, signatures of nothing, the signature of another token, and other alphabets."""

from attack import GatewayAttack
from insider import MESSAGES, bearer, record, running, send

from lightning_smith.gateway.tokens import Role, mint


def forgeries(stack, victim, attacker, role):
    """Tokens for the victim's rollout that nobody minted."""
    own = attacker.token(role)
    prefix, signature = victim.token(role).rpartition(".")[0], own.rpartition(".")[2]
    yield from (
        f"{prefix}.{forged}" for forged in (signature, "", "0" * 64, signature.upper(), "é", "0" * 10_000)
    )
    yield from (mint(key, victim.rollout_id, "0", role) for key in ("guess" * 4, stack.gateway_url, own))
    yield from (victim.token(role).upper(), victim.token(role) + "0", victim.token(role)[:-1], prefix)
    yield from (
        own.replace(attacker.rollout_id, victim.rollout_id),
        "ls",
        "....",
        "a.b.c.d.e",
        own + "." + own,
    )


def run(stack) -> bool:
    """Whether a forged token opened anything."""
    answers = []
    outcome = {"event_type": "outcome", "data": record("linger-1")}
    with running(stack) as victim, running(stack) as attacker:
        for role, path, body in (
            (Role.REPORT, victim.events_path, outcome),
            (Role.MODEL, victim.completions_path, MESSAGES),
        ):
            for token in forgeries(stack, victim, attacker, role):
                for headers in (bearer(token), [("X-API-Key", token)]):
                    answers.append(send(stack, "POST", path, headers, body)[0])
        kept = victim.kept("outcome")
    return bool(kept) or set(answers) != {401}


ATTACK = GatewayAttack(run)
