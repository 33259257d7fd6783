"""Start gateway, policy server and controller of a stage on this machine, and end them with it.

    with Stack(work, policy=PolicyServer(model_dir, "policy"), stage_file=path) as stack:
        for finished in dispatch(stack.gateway, requests, check=stack.check):
            ...

Agent Lightning's server is the one of the installed wheel, behind a guard (`server.py`); the controller is its local
reconciler with warm rollouts (`runner.py`). Everything listens on 127.0.0.1 only, on ports that were free, behind a key
of this run, which gateway and controller read from a pipe; rollouts get tokens (`tokens.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from lightning_smith.core.entry_points import AGENT_CLASS, GATEWAY_SERVER, POLICY_SERVER, RUNNER
from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.core.process import Service, free_port, minimal_environment, port_is_free
from lightning_smith.gateway.client import Gateway
from lightning_smith.gateway.key import STANDARD_INPUT, check_key

START_TIMEOUT_S = 300.0
"""Loading torch takes seconds, but took two minutes on a busy two-core laptop with a cold disk."""

GATEWAY = "gateway (agl-server)"

# hydra would otherwise write a log and a copy of the configuration, key included, below the working
# directory.
_HYDRA = ["hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none"]


def workflow_python() -> Path:
    """Python of the root environment: LIGHTNING_SMITH_PYTHON (set by the workflow), else `.venv`."""
    if named := os.environ.get("LIGHTNING_SMITH_PYTHON"):
        return _existing(Path(named), "unset LIGHTNING_SMITH_PYTHON or name the root environment's Python")
    return _existing(REPOSITORY / ".venv/bin/python", f"run `uv sync` in {REPOSITORY}")


def mini_python() -> Path:
    """Python of the environment with torch that serves the policy."""
    return _existing(
        REPOSITORY / "envs/mini/.venv/bin/python", f"run `uv sync --project envs/mini` in {REPOSITORY}"
    )


def _existing(path: Path, remedy: str) -> Path:
    if not path.exists():
        raise UserError(f"{path} does not exist: {remedy}")
    return path


@dataclass(frozen=True)
class PolicyServer:
    """The policy to serve: a Hugging Face folder, and the name under which gateway and server know it.

    `revision` goes into the rollout records; `threads` are those of torch. `routed_experts` asks for the
    experts of every token (mixture-of-experts policies). `max_model_len` are the tokens, prompt and answer, that it is
    served with; None for all that it can hold.
    """

    model_dir: Path
    model_name: str
    revision: str = ""
    dtype: str = "float32"
    routed_experts: bool = False
    threads: int = 1
    max_model_len: int | None = None

    def deciding(self) -> dict[str, Any]:
        """Return what decides the policy's answers."""
        facts = {"model": self.model_name, "revision": self.revision, "dtype": self.dtype}
        return facts | {"context": self.max_model_len}

    def command(self, port: int) -> list[str]:
        """Command line that serves the policy at 127.0.0.1:`port`."""
        model = ["--model", str(self.model_dir.resolve()), "--model-name", self.model_name]
        options = ["--port", str(port), "--dtype", self.dtype, "--threads", str(self.threads)]
        options += ["--routed-experts"] if self.routed_experts else []
        options += ["--max-model-len", str(self.max_model_len)] if self.max_model_len else []
        return [str(mini_python()), "-m", POLICY_SERVER, *model, *options]

    def environment(self) -> dict[str, str]:
        """Thread limits: a spinning OpenMP pool would take the cores that the sandboxes need."""
        return {"OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}


class Stack:
    """Context manager of the three services of a stage.

    Attributes: `gateway` (client), `key`, `policy_url` (root of the policy server, without /v1),
    `gateway_url`. Nothing of it survives the block, an exception, or the death of this process (kill -9
    included). Enter it in the main thread.

    Args:
        work_dir: folder of the stage; logs go to `<work_dir>/logs` unless `logs` says otherwise.
        stage_file: settings that the agents read (LS_STAGE_FILE in the controller's environment).
        key: of the gateway, 16 characters or more; random if None.
        max_rollouts: how many rollouts run at once.
        agent: `module:class` that the controller imports once and runs for every rollout.
        environment: more variables for the controller and its rollouts.
    """

    def __init__(
        self,
        work_dir: Path | str,
        *,
        policy: PolicyServer,
        stage_file: Path | str | None,
        key: str | None = None,
        max_rollouts: int = 32,
        train_temperature: float = 1.0,
        val_temperature: float = 1.0,
        poll_interval_s: float = 0.3,
        logs: Path | str | None = None,
        agent: str = AGENT_CLASS,
        environment: dict[str, str] | None = None,
        gateway_port: int | None = None,
        policy_port: int | None = None,
    ) -> None:
        self.work_dir = Path(work_dir).resolve()
        self.logs = Path(logs).resolve() if logs else self.work_dir / "logs"
        self.policy, self.agent = policy, agent
        self.stage_file = Path(stage_file).resolve() if stage_file else None
        self.key = check_key(key or secrets.token_urlsafe(24))
        self.max_rollouts, self.poll_interval_s = max_rollouts, poll_interval_s
        self.train_temperature, self.val_temperature = train_temperature, val_temperature
        self._environment = dict(environment or {})
        self._gateway_port = gateway_port or free_port()
        self._policy_port = policy_port or free_port()
        self.gateway_url = f"http://127.0.0.1:{self._gateway_port}"
        self.policy_url = f"http://127.0.0.1:{self._policy_port}"
        self.gateway = Gateway(self.gateway_url, self.key, log=self.logs / "gateway.log")
        self.services: list[Service] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def check(self) -> None:
        """Raise UserError naming the service and its log if one of them has ended."""
        for service in self.services:
            service.check()

    def stop(self) -> None:
        """End all services, the controller (and its rollouts) first; a second call does nothing."""
        self.gateway.close()
        with contextlib.ExitStack() as stack:  # every service is stopped, even if stopping one raises
            for service in self.services:
                stack.callback(service.stop)
        self.services.clear()

    def _start(self) -> None:
        for port in (self._gateway_port, self._policy_port):
            if not port_is_free(port):
                raise UserError(f"port {port} of 127.0.0.1 is in use: end what `ss -ltnp` shows there")
        runs = self.work_dir / "services"
        runs.mkdir(parents=True, exist_ok=True)
        self._launch(GATEWAY, "gateway.log", self._gateway_command(), runs, {}, secret=self.key)
        self._launch("policy server", "policy.log", self._policy_command(), runs, self.policy.environment())
        self._wait(GATEWAY, self.gateway.health)
        self.check()
        self.gateway.state()  # a stranger on this port would refuse the key
        stage = {"LS_STAGE_FILE": str(self.stage_file)} if self.stage_file else {}
        environment = {**self._environment, **stage}
        command = self._controller_command()
        self._launch("controller", "controller.log", command, runs, environment, secret=self.key)
        self._wait("policy server", self._policy_healthy)
        self._check_announcement()
        self._check_policy_answer()
        self.gateway.register_models(self.policy.model_name, [f"{self.policy_url}/v1"])
        self.check()

    def _launch(
        self,
        name: str,
        log: str,
        command: list[str],
        cwd: Path,
        environment: dict[str, str],
        secret: str | None = None,
    ) -> None:
        env = minimal_environment(**environment)
        service = Service(name, command, log=self.logs / log, env=env, cwd=cwd, secret=secret)
        self.services.append(service)

    def _gateway_command(self) -> list[str]:
        return [
            *(str(workflow_python()), "-m", GATEWAY_SERVER, *_HYDRA),
            *("host=127.0.0.1", f"port={self._gateway_port}", f"key={STANDARD_INPUT}"),
            f"default_proxy.model_name={_hydra_quoted(self.policy.model_name)}",
            f"default_proxy.include_routed_experts={str(self.policy.routed_experts).lower()}",
            f"default_proxy.train.temperature={self.train_temperature}",
            f"default_proxy.val.temperature={self.val_temperature}",
        ]

    def _policy_command(self) -> list[str]:
        return self.policy.command(self._policy_port)

    def _controller_command(self) -> list[str]:
        return [
            *(str(workflow_python()), "-m", RUNNER, *_HYDRA, "runner_type=local"),
            *(f"agl_server.url={self.gateway_url}", f"agl_server.key={STANDARD_INPUT}"),
            f"local_runner.maximum_size={self.max_rollouts}",
            f"local_runner.poll_interval={self.poll_interval_s}",
            f"+agent={_hydra_quoted(self.agent)}",
            f"+variables=[{','.join(map(_hydra_quoted, self._environment))}]",
        ]

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                service = next(service for service in self.services if service.name == name)
                raise UserError(
                    f"the {name} does not answer after {START_TIMEOUT_S:.0f} s; {service.log} ends with:\n"
                    f"{service.log_tail()}"
                )
            time.sleep(0.05)

    def _policy_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.policy_url}/health", timeout=10, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _check_announcement(self) -> None:
        """Refuse a server that announces another model, or another length, than was asked for."""
        url = f"{self.policy_url}/v1/models"
        try:
            announced = httpx.get(url, timeout=START_TIMEOUT_S, trust_env=False).json()["data"]
            lengths = {entry["id"]: entry.get("max_model_len") for entry in announced}
        except (httpx.TransportError, ValueError, KeyError, TypeError, AttributeError):
            self.check()
            raise UserError(f"{url} does not say which model the policy server serves") from None
        name, asked = self.policy.model_name, self.policy.max_model_len
        if name not in lengths:
            raise UserError(
                f"the policy server at {self.policy_url} serves {', '.join(map(str, lengths)) or 'nothing'}, not {name}"
            )
        if asked is not None and lengths[name] != asked:
            raise UserError(
                f"the policy server at {self.policy_url} serves {name} with {lengths[name]} tokens, and {asked} were "
                "asked for (policies.*.max_model_len)"
            )

    def _check_policy_answer(self) -> None:
        """Ask for two tokens as the gateway would: without their ids nothing could be trained or counted."""
        body = {
            "model": self.policy.model_name,
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 2,
            "temperature": 1.0,
            "seed": 0,
            "return_token_ids": True,
            "logprobs": True,
            **({"return_routed_experts": True} if self.policy.routed_experts else {}),
        }
        url = f"{self.policy_url}/v1/chat/completions"
        try:
            response = httpx.post(url, json=body, timeout=START_TIMEOUT_S, trust_env=False)
        except httpx.TransportError as error:
            self.check()
            raise UserError(
                f"the policy server at {url} does not answer: {type(error).__name__} {error}"
            ) from None
        if response.is_error:
            raise UserError(
                f"the policy server at {url} answered {response.status_code}: {response.text[:300]}"
            )
        if missing := missing_from_answer(response.json(), self.policy.routed_experts):
            raise UserError(
                f"the policy server at {url} answers without {missing}: serve the model with a server that "
                "honours return_token_ids and logprobs"
            )


def missing_from_answer(answer: dict[str, Any], routed_experts: bool) -> str | None:
    """Return what a chat completion lacks to be a training example: the name of the first missing field, or None."""
    choice = (answer.get("choices") or [{}])[0]
    if not (answer.get("prompt_token_ids") or choice.get("prompt_token_ids")):
        return "prompt_token_ids"
    tokens = choice.get("token_ids")
    if not tokens:
        return "choices[0].token_ids"
    log_probs = (choice.get("logprobs") or {}).get("content") or []
    if len(log_probs) != len(tokens):
        return "choices[0].logprobs.content (one entry a token)"
    if routed_experts and not choice.get("routed_experts"):
        return "choices[0].routed_experts"
    return None


def _hydra_quoted(text: str) -> str:
    """Return a value for a hydra override, whatever characters it holds."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
