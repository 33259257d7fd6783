"""The controller of a machine without a cluster: Agent Lightning's local reconciler with warm rollouts.

The stock reconciler starts a Python process a rollout, which imports everything again: 0.3 s of CPU. Here
the agent is imported once and a rollout is a fork (`fork_server.py`). Polling, states, time limits and kills are
the stock ones.

    python -m lightning_smith.gateway.runner runner_type=local agl_server.url=http://127.0.0.1:8080 \
        agl_server.key=- +agent=lightning_smith.agent.rollout:Agent hydra.run.dir=. < key

The run's key stays here: rollouts get tokens of their own, and their memory never had it. Two options are not the stock
controller's. `+agent=` names the agent to import once; without it every rollout imports its own, which an agent needs
whose import opens connections. `+variables=[NAME,...]` names variables of this process that rollouts have beside those
of `INHERITED` and LS_*; the stock controller's rollouts have all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, cast

import hydra
import structlog
from agentlightning.client import AgentLightningAsyncClient
from agentlightning.controller.local_reconciler import LocalReconciler, Proc, _build_env_from_map
from agentlightning.schemas import DEFAULT_ATTEMPT_ID, Rollout, RolloutState
from omegaconf import DictConfig, ListConfig

from lightning_smith.core.errors import UserError, exit_on_user_error
from lightning_smith.core.process import minimal_environment
from lightning_smith.gateway.fork_server import ForkedRollout, ForkServer
from lightning_smith.gateway.key import keep_out_of_logs, read_key
from lightning_smith.gateway.tokens import Role, mint

INHERITED = ("PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of the controller that rollouts have beside those that any program needs (`minimal_environment`)."""

log = structlog.get_logger()


def inherited_variables(named: Any) -> dict[str, str]:
    """Return what rollouts have of this process's variables, those of the list `named` too; logs once what they
    lack.
    """
    if not isinstance(named, list | ListConfig) or not all(isinstance(name, str) for name in named):
        raise UserError(f"variables is {named}, and not a list of names: write +variables=[NAME,...]")
    if absent := [name for name in named if name not in os.environ]:
        raise UserError(
            f"variables names {absent[0]}, which this process does not have: set it, or leave it out"
        )
    passed = {*named, *INHERITED, *(name for name in os.environ if name.startswith("LS_"))}
    kept = minimal_environment(**{name: os.environ[name] for name in passed if name in os.environ})
    if dropped := sorted(os.environ.keys() - kept.keys()):
        log.info("Variables that rollouts do not get; +variables=[NAME,...] passes one on", names=dropped)
    return kept


class WarmReconciler(LocalReconciler):
    """Local reconciler whose rollouts are forks of a fork server."""

    def __init__(
        self,
        api: AgentLightningAsyncClient,
        config: DictConfig,
        fork_server: ForkServer,
        inherited: Mapping[str, str],
    ) -> None:
        super().__init__(api=api, config=config)
        self._fork_server, self._inherited = fork_server, inherited

    async def _spawn_for(self, rollout: Rollout) -> bool:
        try:
            if rollout.config.local is None or not rollout.config.local.agent_class:
                raise ValueError("invalid rollout config: missing config.local.agent_class")
            child = self._fork_server.fork(
                rollout.config.local.agent_class, self._rollout_environment(rollout)
            )
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
        """Return all variables of one rollout: addresses and tokens for the agent (never for the model's commands).

        The model's token has the name that OpenAI clients are told to read.
        """
        server, id_ = self._config.agl_server, rollout.rollout_id
        base = str(server.get("agent_url", None) or server.url).rstrip("/")
        attempt = f"{id_}/attempt/{DEFAULT_ATTEMPT_ID}"
        mode = "train" if rollout.is_train else "val"
        assert rollout.config.local is not None
        return {
            **self._inherited,
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
        """Return the stock patch; a failure carries the last line that the rollout printed; its output is logged."""
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


async def run_controller(config: DictConfig, fork_server: ForkServer, inherited: Mapping[str, str]) -> None:
    """Reconcile until SIGTERM or SIGINT; rollouts that run then are killed and reported as failed."""
    key, url = str(config.agl_server.key), str(config.agl_server.url)
    async with AgentLightningAsyncClient(base_url=url, key=key, trust_env=False) as api:
        reconciler = WarmReconciler(api, config, fork_server, inherited)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, reconciler.stop)
        await reconciler.run()


def main() -> None:
    """Import the agent once, then reconcile; what keeps the agent from working is the last line of the log."""
    fork_server = (
        ForkServer()
    )  # before hydra: rollouts have neither its logging nor what it was configured with

    @hydra.main(version_base=None, config_path="pkg://agentlightning.config", config_name="controller")
    def control(config: DictConfig) -> None:
        keep_out_of_logs()
        with exit_on_user_error():
            if config.runner_type != "local":
                raise UserError(
                    "this controller runs rollouts on this machine: say runner_type=local; a cluster's is "
                    "`python -m agentlightning.controller`"
                )
            config.agl_server.key = read_key("agl_server.key", str(config.agl_server.key or ""))
            inherited = inherited_variables(config.get("variables") or [])
        agent = str(config.get("agent") or "")
        if note := fork_server.prepare(agent, inherited):
            log.info(
                "Rollouts that would find their agent different import it anew", agent=agent, reason=note
            )
        asyncio.run(run_controller(config, fork_server, inherited))

    control()


if __name__ == "__main__":
    main()
