"""Reports, with its own token, the outcome of a rollout of another task as its own."""

from attack import GatewayAttack
from gateway_stack import AGENT
from insider import Insider, record

from lightning_smith.gateway.dispatch import RolloutRequest, dispatch


def run(stack) -> bool:
    """Whether the foreign record was taken for the rollout's."""
    done = set()

    def forge() -> None:
        for row in stack.gateway.list_rollouts(["queuing", "running"]):
            if row["rollout_id"] not in done:
                done.add(row["rollout_id"])
                assert Insider(stack, row["rollout_id"]).report("outcome", record("ok-1")) == 200

    requests = [RolloutRequest("slow_silent-1", 0, 7)]
    (finished,) = dispatch(stack.gateway, requests, check=forge, agent=AGENT, retries=0)
    assert "reported the outcome of ok-1" in (finished.record.error or "")
    return finished.record.reward is not None


ATTACK = GatewayAttack(run)
