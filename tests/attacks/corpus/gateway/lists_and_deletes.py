"""Lists the rollouts and reads their tasks, ends and deletes them, registers and forgets models, reads the API's pages."""

from attack import GatewayAttack
from insider import running


def run(stack) -> bool:
    """Whether any call was answered, or had an effect."""
    model = [{"model": "stub", "endpoint": "http://127.0.0.1:1/v1", "version": 9}]
    with running(stack) as victim, running(stack) as attacker:
        calls = [
            ("GET", "/api/rollouts?state_in=running", None),
            ("GET", "/api/rollouts/terminal?after=0", None),
        ]
        for insider in (victim, attacker):
            path = f"/api/rollouts/{insider.rollout_id}"
            calls += [
                ("GET", path, None),
                ("GET", f"{path}/events", None),
                ("GET", f"{path}/events?format=triplet", None),
            ]
            calls += [("PATCH", path, {"status": {"state": state}}) for state in ("succeeded", "failed")]
            calls += [("DELETE", path, None)]
        calls += [("POST", "/api/rollouts", [{"rollout_id": "planted", "input": {}}])]
        calls += [("POST", "/api/models", model), ("DELETE", "/api/models", None)]
        calls += [("GET", path, None) for path in ("/", "/docs", "/redoc", "/openapi.json", "/healthz/x")]
        answers = [answer for method, path, body in calls for answer in attacker.try_both(method, path, body)]
        rows = {
            row["rollout_id"]
            for row in stack.gateway.list_rollouts(["running", "failed", "succeeded", "queuing"])
        }
        unharmed = {victim.rollout_id, attacker.rollout_id} <= rows and "planted" not in rows
        served = attacker.ask() == victim.ask() == 200
    return not unharmed or not served or set(answers) != {403}


ATTACK = GatewayAttack(run)
