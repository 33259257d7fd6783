"""The controller of a machine without a cluster: Agent Lightning's local reconciler with warm rollouts.

The stock reconciler starts a Python process a rollout, which imports everything again: 0.3 s of CPU. Here
the agent is imported once and a rollout is a fork of this process. Polling, states, time limits and kills
are the stock ones.

    AGL_KEY=... python -m lightning_smith.gateway.runner runner_type=local
    agl_server.url=http://127.0.0.1:8080 \
        "agl_server.key='${oc.env:AGL_KEY}'" +agent=lightning_smith.rollout.agent:Agent hydra.run.dir=.

Give the gateway's address as numbers: looking up a name starts a thread, and a process with threads must
not fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, NoReturn, cast

import hydra
import structlog
from agentlightning.client import AgentLightningAsyncClient
from agentlightning.controller.local_reconciler import (
    LocalReconciler,
    Proc,
    _build_env_from_map,
    _run_local_reconciler_worker,
)
from agentlightning.schemas import DEFAULT_ATTEMPT_ID, Rollout, RolloutState
from omegaconf import DictConfig

from lightning_smith.errors import exit_on_user_error
from lightning_smith.process import PR_SET_PDEATHSIG, minimal_environment

log = structlog.get_logger()

OUTPUT_KEPT_BYTES = 32_768
"""How much of what a rollout printed goes to the controller's log: its end."""

_libc = ctypes.CDLL(None, use_errno=True)


class ForkedRollout:
    """A rollout in a forked child, with what the stock reconciler asks of a process: pid, returncode, wait().

    `output` is an unnamed file that holds what the child printed.
    """

    def __init__(self, pid: int, output: IO[bytes]) -> None:
        self.pid = pid
        self.output = output
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """None while it runs, else its exit status or minus the signal that ended it."""
        if self._returncode is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            # What a killed agent left in its group goes before the reaping, while nobody else can have the
            # pid.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._returncode

    async def wait(self) -> int:
        """Wait for the end and return `returncode`."""
        while (code := self.returncode) is None:
            await asyncio.sleep(0.02)
        return code

    def take_output(self) -> str:
        """The end of what the child printed; closes the file."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - OUTPUT_KEPT_BYTES))
        text = self.output.read().decode("utf-8", errors="replace")
        self.output.close()
        return text.strip()


class WarmReconciler(LocalReconciler):
    """Local reconciler whose rollouts are forks of this process."""

    async def _spawn_for(self, rollout: Rollout) -> bool:
        try:
            if rollout.config.local is None or not rollout.config.local.agent_class:
                raise ValueError("invalid rollout config: missing config.local.agent_class")
            child = fork_rollout(rollout.config.local.agent_class, self._rollout_environment(rollout))
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
        """The variables of one rollout: addresses and key for the agent (never for the model's commands)."""
        server = self._config.agl_server
        base = str(server.get("agent_url", None) or server.url).rstrip("/")
        attempt = f"{rollout.rollout_id}/attempt/{DEFAULT_ATTEMPT_ID}"
        mode = "train" if rollout.is_train else "val"
        assert rollout.config.local is not None
        return {
            "AGL_KEY": str(server.key or ""),
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


def fork_rollout(agent_class: str, environment: dict[str, str]) -> ForkedRollout:
    """Fork a child that runs `agent_class().run()`; for the main thread of a process without other ones."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives until the rollout's end is reported)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_child(agent_class, environment, output.fileno(), parent)
    return ForkedRollout(pid, output)


def _run_child(agent_class: str, environment: dict[str, str], output: int, parent: int) -> NoReturn:
    code = 1
    try:
        # Objects of the parent must never be collected here: their files are closed below, and closing them
        # again would hit files that the agent opened under the same numbers.
        gc.freeze()
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call, so no signal will come
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 1)
        stage = {name: value for name, value in os.environ.items() if name.startswith("LS_")}
        inherited = minimal_environment(**stage)
        os.environ.clear()
        os.environ.update(inherited | environment)
        code = _run_local_reconciler_worker(agent_class)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


async def run_controller(config: DictConfig) -> None:
    """Reconcile until SIGTERM or SIGINT; rollouts that run then are killed and reported as failed."""
    key = str(config.agl_server.key or "") or None
    url = str(config.agl_server.url)
    async with AgentLightningAsyncClient(base_url=url, key=key, trust_env=False) as api:
        reconciler = WarmReconciler(api=api, config=config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, reconciler.stop)
        await reconciler.run()


@hydra.main(version_base=None, config_path="pkg://agentlightning.config", config_name="controller")
def main(config: DictConfig) -> None:
    """Import the agent once, then reconcile; what keeps the agent from working is the last line of the log."""
    with exit_on_user_error():
        importlib.import_module(str(config.agent).partition(":")[0])
    gc.collect()
    gc.freeze()  # forks share these pages: the collector must not touch them
    asyncio.run(run_controller(config))


if __name__ == "__main__":
    main()  # pyright: ignore[reportCallIssue] (hydra passes the configuration)
