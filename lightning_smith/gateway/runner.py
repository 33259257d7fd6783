"""The controller of a machine without a cluster: Agent Lightning's local reconciler with warm rollouts.

The stock reconciler starts a Python process a rollout, which imports everything again: 0.3 s of CPU. Here
the agent is imported once and a rollout is a fork (`nursery.py`). Polling, states, time limits and kills are
the stock ones.

    python -m lightning_smith.gateway.runner runner_type=local agl_server.url=http://127.0.0.1:8080 \
        agl_server.key=- +agent=lightning_smith.rollout.agent:Agent hydra.run.dir=. < key

The run's key stays here: rollouts get tokens of their own, and their memory never had it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import cast

import hydra
import structlog
from agentlightning.client import AgentLightningAsyncClient
from agentlightning.controller.local_reconciler import LocalReconciler, Proc, _build_env_from_map
from agentlightning.schemas import DEFAULT_ATTEMPT_ID, Rollout, RolloutState
from omegaconf import DictConfig

from lightning_smith.errors import exit_on_user_error
from lightning_smith.gateway.key import keep_out_of_logs, read_key
from lightning_smith.gateway.nursery import ForkedRollout, Nursery
from lightning_smith.gateway.tokens import Role, mint

log = structlog.get_logger()


class WarmReconciler(LocalReconciler):
    """Local reconciler whose rollouts are forks of a nursery."""

    def __init__(self, api: AgentLightningAsyncClient, config: DictConfig, nursery: Nursery) -> None:
        super().__init__(api=api, config=config)
        self._nursery = nursery

    async def _spawn_for(self, rollout: Rollout) -> bool:
        try:
            if rollout.config.local is None or not rollout.config.local.agent_class:
                raise ValueError("invalid rollout config: missing config.local.agent_class")
            child = self._nursery.fork(rollout.config.local.agent_class, self._rollout_environment(rollout))
        except Exception as error:
            log.exception("Fork failed", rollout_id=rollout.rollout_id)
            message = f"the rollout could not start: {error}"
            await self._patch(rollout.rollout_id, RolloutState.FAILED, message)
            return False
        self._rid_to_proc[rollout.rollout_id] = Proc(
            attempt_id=DEFAULT_ATTEMPT_ID,
            proc=cast(asyncio.subprocess.Process, child),
            spawned_at=time.monotonic(),
        )
        await self._patch(rollout.rollout_id, RolloutState.RUNNING, last_attempt_id=DEFAULT_ATTEMPT_ID)
        return True

    def _rollout_environment(self, rollout: Rollout) -> dict[str, str]:
        """The variables of one rollout: addresses and tokens for the agent (never for the model's commands).

        The model's token has the name that OpenAI clients are told to read.
        """
        server, id_ = self._config.agl_server, rollout.rollout_id
        base = str(server.get("agent_url", None) or server.url).rstrip("/")
        attempt = f"{id_}/attempt/{DEFAULT_ATTEMPT_ID}"
        mode = "train" if rollout.is_train else "val"
        assert rollout.config.local is not None
        return {
            "AGL_KEY": mint(server.key, id_, DEFAULT_ATTEMPT_ID, Role.MODEL),
            "LS_REPORT_TOKEN": mint(server.key, id_, DEFAULT_ATTEMPT_ID, Role.REPORT),
            "AGL_OPENAI_BASE_URL": f"{base}/proxy/rollout/{attempt}/mode/{mode}/openai/v1",
            "AGL_EVENT_URL": f"{base}/api/rollouts/{attempt}/events",
            **_build_env_from_map(rollout.input, rollout.config.local.env_map),
        }

    async def _patch(
        self,
        rollout_id: str,
        state: RolloutState,
        error_message: str | None = None,
        *,
        last_attempt_id: str | None = None,
    ) -> bool:
        """The stock patch; a failure carries the last line that the rollout printed; its output is logged."""
        if state in (RolloutState.SUCCEEDED, RolloutState.FAILED):
            output = self._take_output(rollout_id)
            if output:
                log.info("Rollout printed", rollout_id=rollout_id, state=state.value, output=output)
            if error_message is not None and output:
                error_message = f"{error_message}: {output.splitlines()[-1][:500]}"
        return await super()._patch(rollout_id, state, error_message, last_attempt_id=last_attempt_id)

    def _take_output(self, rollout_id: str) -> str:
        item = self._rid_to_proc.get(rollout_id)
        child = item.proc if item else None
        if not isinstance(child, ForkedRollout) or child.output.closed:
            return ""
        return child.take_output()


async def run_controller(config: DictConfig, nursery: Nursery) -> None:
    """Reconcile until SIGTERM or SIGINT; rollouts that run then are killed and reported as failed."""
    key, url = str(config.agl_server.key), str(config.agl_server.url)
    async with AgentLightningAsyncClient(base_url=url, key=key, trust_env=False) as api:
        reconciler = WarmReconciler(api, config, nursery)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, reconciler.stop)
        await reconciler.run()


@hydra.main(version_base=None, config_path="pkg://agentlightning.config", config_name="controller")
def main(config: DictConfig) -> None:
    """Import the agent once, then reconcile; what keeps the agent from working is the last line of the log."""
    nursery = Nursery(str(config.agent).partition(":")[0])
    keep_out_of_logs()
    with exit_on_user_error():
        config.agl_server.key = read_key(str(config.agl_server.key or ""))
    asyncio.run(run_controller(config, nursery))


if __name__ == "__main__":
    main()  # pyright: ignore[reportCallIssue] (hydra passes the configuration)
