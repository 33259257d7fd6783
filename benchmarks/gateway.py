"""What the guard in front of Agent Lightning's gateway adds to a request.

    uv run python benchmarks/gateway.py [--requests 500] [--conversation 50000]

Starts the gateway twice, as the wheel has it and behind the guard, each before the policy without a model of the tests.
Requests go out one at a time over connections that stay open, one of each kind in turn, in an order that is drawn, so
that what else the machine does hits all of them alike. The last line is one JSON object, medians in milliseconds:

    stock_ms, key_ms, token_ms    a completion, of the stock gateway, behind the guard with the key, and with a token
    stock_state_ms, key_state_ms  the smallest request that there is: the state of the proxy
"""

from __future__ import annotations

import argparse
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

from lightning_smith.errors import run_script
from lightning_smith.gateway.client import Gateway
from lightning_smith.gateway.tokens import Role, mint
from lightning_smith.process import free_port

ROOT = Path(__file__).resolve().parents[1]
ROLLOUT = "benchmark"
PATH = f"/proxy/rollout/{ROLLOUT}/attempt/0/mode/train/openai/v1/chat/completions"


def start(stack: ExitStack, module: str, key: str, policy_port: int) -> int:
    """Start a gateway that knows the policy and one rollout, and return its port."""
    port = free_port()
    command = [sys.executable, "-m", module, "host=127.0.0.1", f"port={port}", f"key={key}"]
    command += ["default_proxy.model_name=stub", "hydra.run.dir=.", "hydra.output_subdir=null"]
    process = stack.enter_context(
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    )
    stack.callback(process.terminate)
    with Gateway(f"http://127.0.0.1:{port}", key) as gateway:
        while not gateway.health():
            time.sleep(0.1)
        gateway.register_models("stub", [f"http://127.0.0.1:{policy_port}/v1"])
        gateway.create_rollouts([{"rollout_id": ROLLOUT, "input": {}}])
    return port


class Caller:
    """Sends one kind of request over one connection and keeps the times."""

    def __init__(self, port: int, token: str, method: str, path: str, body: bytes | None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.request = (method, path, body, {"Authorization": f"Bearer {token}"})
        self.times_s: list[float] = []

    def call(self) -> None:
        """Send it once."""
        began_s = time.perf_counter()
        self.connection.request(*self.request)
        answer = self.connection.getresponse()
        answer.read()
        self.times_s.append(time.perf_counter() - began_s)
        if answer.status != 200:
            raise RuntimeError(f"{self.request[1]} was answered with {answer.status}")

    @property
    def median_ms(self) -> float:
        """Without the first tenth, in which everything is cold."""
        return round(1000 * median(self.times_s[len(self.times_s) // 10 :]), 3)


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
        policy = [sys.executable, str(ROOT / "tests/e2e/stub_policy.py"), str(policy_port)]
        stack.callback(stack.enter_context(subprocess.Popen(policy)).terminate)
        stock = start(stack, "agentlightning.server", key, policy_port)
        guarded = start(stack, "lightning_smith.gateway.server", key, policy_port)
        token = mint(key, ROLLOUT, "0", Role.MODEL)
        callers = {
            "stock_ms": Caller(stock, key, "POST", PATH, body),
            "key_ms": Caller(guarded, key, "POST", PATH, body),
            "token_ms": Caller(guarded, token, "POST", PATH, body),
            "stock_state_ms": Caller(stock, key, "GET", "/proxy/state", None),
            "key_state_ms": Caller(guarded, key, "GET", "/proxy/state", None),
        }
        for _ in range(arguments.requests):
            for caller in random.sample(list(callers.values()), len(callers)):
                caller.call()
    print(json.dumps({name: caller.median_ms for name, caller in callers.items()}))


if __name__ == "__main__":
    run_script(main)
