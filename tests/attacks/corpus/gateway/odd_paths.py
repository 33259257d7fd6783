"""Writes the addresses of its own and of other calls in every odd way, with every method, and both of its tokens."""

from attack import GatewayAttack
from insider import MESSAGES, running

METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post", "Post", "CONNECTED")


def spellings(path: str):
    """The path in ways that a router could take for the path itself."""
    yield from (
        f"/{path}",
        f"{path}/",
        f"/.{path}",
        f"/x/..{path}",
        f"{path}/.",
        f"{path}/..",
        f"{path}?x=1",
    )
    yield from (path.upper(), path.replace("/", "//"), path.replace("/", "%2f"), path.replace("/", "/./"))
    yield from (
        path.replace("o", "%6f"),
        f"{path};x",
        f"{path}%00",
        f"{path}%20",
        f"{path}%2f",
        f"{path}%3fx=1",
    )
    yield from (
        path.replace("/", "\\"),
        f"{path}#x",
        f"{path}?token=x",
        f"{path}%0d%0ax:%20y",
        "/%2e%2e" + path,
    )


def run(stack) -> bool:
    """Whether a request was let through that is not spelt as the allowed ones are."""
    refused = {400, 403}  # by the HTTP parser, and by the guard
    with running(stack) as victim, running(stack) as attacker:
        own = {attacker.events_path, attacker.completions_path}
        event = {"event_type": "reward", "data": {"value": 1.0}}
        answers = []
        for path in own:
            for spelt in spellings(path):
                answers.append((spelt, attacker.try_both("POST", spelt, MESSAGES)))
            for method in METHODS:
                answers.append((method, attacker.try_both(method, path, event)))
            answers.append(("absolute", attacker.try_both("POST", f"http://x/{path}", event)))
        prefix = f"/api/rollouts/{attacker.rollout_id}/attempt/0/events/../../../.."
        encoded = prefix.replace("..", "%2e%2e")
        for target in (
            f"/proxy/state/{attacker.completions_path}",
            *(
                f"{start}{end}"
                for start in (prefix, encoded, attacker.completions_path.rpartition("/chat")[0])
                for end in (
                    "/proxy/pause",
                    "/models",
                    "/rollouts",
                    f"/rollouts/{victim.rollout_id}",
                    "/completions",
                    "/embeddings",
                )
            ),
        ):
            for method in ("POST", "GET", "DELETE"):
                answers.append(
                    (target, attacker.try_both(method, target, {"reason": "x", "retry_after_seconds": 600}))
                )
        through = [answer for answer in answers if not set(answer[1]) <= refused]
        untouched = not stack.gateway.state()["paused"] and not attacker.kept("reward") + victim.kept(
            "reward"
        )
        assert stack.gateway.rollout(victim.rollout_id)["status"]["state"] == "running"
    assert not through, through
    return not untouched


ATTACK = GatewayAttack(run)
