"""What the guard in front of Agent Lightning's gateway adds to a request.

    uv run python benchmarks/gateway.py [--requests 500] [--conversation 50000]

Starts the gateway as the wheel has it, and behind the guard once a credential, each before the policy without a model
of the tests. Requests go out one at a time over connections that stay open, in blocks of 20 of a kind in an order that
is drawn, so that what else the machine does hits all kinds alike. Then the guard is measured alone, before an
application that reads the body and does nothing. The last line is one JSON object, medians of what a request takes
(`_ms`), of the gateway's processor time in it (`_cpu_ms`), and of the guard's (`guard_..._us`):

    stock, key, token         a completion, of the stock gateway, behind the guard with the key, and with a token
    stock_state, key_state    the smallest request that there is: the state of the proxy
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from agentlightning.schemas import Rollout, RolloutConfig, RolloutLifecycleStatus
from agentlightning.server.store import _rollouts

from lightning_smith.core.errors import run_script
from lightning_smith.core.process import free_port
from lightning_smith.gateway.client import Gateway
from lightning_smith.gateway.server import Application, Guard, Message, Receive, Scope, Send
from lightning_smith.gateway.tokens import Role, mint

ROOT = Path(__file__).resolve().parents[1]
ROLLOUT = "benchmark"
PATH = f"/proxy/rollout/{ROLLOUT}/attempt/0/mode/train/openai/v1/chat/completions"


BLOCK = 20


def start(stack: ExitStack, module: str, key: str, policy_port: int) -> tuple[int, int]:
    """Start a gateway that knows the policy and one rollout, and return its pid and port."""
    port = free_port()
    guarded = module.startswith("lightning_smith.")  # reads its key from standard input
    command = [
        sys.executable,
        "-m",
        module,
        "host=127.0.0.1",
        f"port={port}",
        f"key={'-' if guarded else key}",
    ]
    command += ["default_proxy.model_name=stub", "hydra.run.dir=.", "hydra.output_subdir=null"]
    process = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    )
    assert process.stdin
    process.stdin.write(f"{key}\n".encode())
    process.stdin.close()
    stack.callback(process.terminate)
    with Gateway(f"http://127.0.0.1:{port}", key) as gateway:
        while not gateway.health():
            time.sleep(0.1)
        gateway.register_models("stub", [f"http://127.0.0.1:{policy_port}/v1"])
        gateway.create_rollouts([{"rollout_id": ROLLOUT, "input": {}}])
    return process.pid, port


class Caller:
    """Sends one kind of request over one connection and keeps what it took."""

    def __init__(
        self, gateway: tuple[int, int], token: str, method: str, path: str, body: bytes | None
    ) -> None:
        self.pid, port = gateway
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.request = (method, path, body, {"Authorization": f"Bearer {token}"})
        self.times_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def block(self) -> None:
        """Send it some times."""
        before_ms = self._cpu_ms()
        for _ in range(BLOCK):
            self._call()
        self.cpu_ms.append((self._cpu_ms() - before_ms) / BLOCK)

    def _call(self) -> None:
        began_s = time.perf_counter()
        self.connection.request(*self.request)
        answer = self.connection.getresponse()
        answer.read()
        self.times_ms.append(1000 * (time.perf_counter() - began_s))
        if answer.status != 200:
            raise RuntimeError(f"{self.request[1]} was answered with {answer.status}")

    def _cpu_ms(self) -> float:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e6

    def medians(self, name: str) -> dict[str, float]:
        """Without the first blocks, in which everything is cold."""
        times_ms, cpu_ms = self.times_ms[2 * BLOCK :], self.cpu_ms[2:]
        return {f"{name}_ms": round(median(times_ms), 3), f"{name}_cpu_ms": round(median(cpu_ms), 3)}


def guard_us(key: str, token: str, body: bytes) -> float:
    """Microseconds of processor time that the guard takes for a completion."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        raise RuntimeError(f"the guard answered {message}")

    async def block(called: Application) -> float:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        path = {"path": PATH, "raw_path": PATH.encode(), "query_string": b""}
        began_s = time.process_time()
        for _ in range(BLOCK):
            await called({"type": "http", "method": "POST", **path, "headers": headers}, receive, send)
        return 1e6 * (time.process_time() - began_s) / BLOCK

    now_s = time.time()
    status = RolloutLifecycleStatus(created_at=now_s, updated_at=now_s)
    _rollouts[ROLLOUT] = Rollout(rollout_id=ROLLOUT, input={}, config=RolloutConfig(), status=status)
    guard = Guard(application, key)
    times_us = [asyncio.run(block(guard)) - asyncio.run(block(application)) for _ in range(200)]
    return round(median(times_us), 1)


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="of each kind")
    parser.add_argument(
        "--conversation", type=int, default=50_000, help="characters of each completion's messages"
    )
    arguments = parser.parse_args()
    key, policy_port = secrets.token_hex(16), free_port()
    messages = [{"role": "user", "content": "x" * arguments.conversation}]
    body = json.dumps({"messages": messages, "max_tokens": 4, "seed": 1}).encode()
    with ExitStack() as stack:
        policy = [sys.executable, str(ROOT / "tests/support/stub_policy.py"), str(policy_port)]
        stack.callback(stack.enter_context(subprocess.Popen(policy)).terminate)
        stock = start(stack, "agentlightning.server", key, policy_port)
        with_key, with_token = (
            start(stack, "lightning_smith.gateway.server", key, policy_port) for _ in range(2)
        )
        token = mint(key, ROLLOUT, "0", Role.MODEL)
        callers = {
            "stock": Caller(stock, key, "POST", PATH, body),
            "key": Caller(with_key, key, "POST", PATH, body),
            "token": Caller(with_token, token, "POST", PATH, body),
            "stock_state": Caller(stock, key, "GET", "/proxy/state", None),
            "key_state": Caller(with_key, key, "GET", "/proxy/state", None),
        }
        for _ in range(arguments.requests // BLOCK):
            for caller in random.sample(list(callers.values()), len(callers)):
                caller.block()
    result: dict[str, float] = {}
    for name, caller in callers.items():
        result |= caller.medians(name)
    result |= {"guard_key_us": guard_us(key, key, body), "guard_token_us": guard_us(key, token, body)}
    print(json.dumps(result))


if __name__ == "__main__":
    run_script(main)
