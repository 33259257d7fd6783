"""An agent without model and sandbox: the name of its task says how the rollout goes."""

import http.client
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KEY = re.compile(rb"sk-run-[0-9a-f]{32}")
"""What the key of a stack looks like that has rollouts search for it."""
TOKEN = re.compile(rb"ls\.(?:model|report)\.[0-9a-f]{32}\.0\.[0-9a-f]{64}")

MODEL, REVISION, DIGEST = "stub", "r0", "sha256:" + "0" * 64


class Agent:
    """Posts the outcome that its task's name asks for, or misbehaves as it says."""

    def __init__(self) -> None:
        self.task = os.environ["LS_INSTANCE_ID"]
        self.sample = int(os.environ["LS_SAMPLE"])
        self.seed = int(os.environ["LS_SEED"])

    def run(self) -> None:
        kind = self.task.split("-")[0]
        if kind == "crash":
            raise ValueError("the agent fell over")
        if kind == "hang":
            time.sleep(600)
        if kind == "silent":
            return
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "spawn" and os.fork() == 0:  # leaves a child behind
            time.sleep(600)
        if kind in ("slow", "slow_silent"):
            time.sleep(1)
        if kind == "slow_silent":
            return
        while kind == "linger":  # until the gateway refuses it
            self.chat()
            time.sleep(0.2)
        replies = {"chat": self.chat, "search": search, "environment": environment}
        reply = replies[kind]() if kind in replies else ""
        self.report("infra" if kind == "infra" else "unsolved" if kind == "fail" else "solved", reply)

    def chat(self) -> str:
        body = {"messages": [{"role": "user", "content": self.task}], "max_tokens": 8, "seed": self.seed}
        answer = self.post(
            os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", body, os.environ["AGL_KEY"]
        )
        (choice,) = answer["choices"]
        return choice["message"]["content"] + (" (not text)" if choice.get("not_text") else "")

    def report(self, outcome: str, reply: str) -> None:
        solved = outcome == "solved"
        record = {
            "instance_id": self.task,
            "sample": self.sample,
            "outcome": outcome,
            "reward": None if outcome == "infra" else float(solved),
            "resolved": None if outcome == "infra" else solved,
            "turns": 1,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "wall_s": 0.0,
            "model": MODEL,
            "model_revision": REVISION,
            "image_digest": DIGEST,
            "seed": self.seed,
            "error": reply or sys.argv[0],
        }
        if os.environ["LS_GRADE"] == "0":
            record = {**record, "outcome": None, "reward": None, "resolved": None, "model_patch": "AP8K"}
        url, token = os.environ["AGL_EVENT_URL"], os.environ["LS_REPORT_TOKEN"]
        self.post(url, {"event_type": "outcome", "data": record}, token)
        if record["reward"] is not None:
            self.post(url, {"event_type": "reward", "data": {"value": record["reward"]}}, token)

    def post(self, url: str, body: dict[str, Any], token: str) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.netloc, timeout=60)
        connection.request("POST", address.path, json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return json.load(response)


def environment() -> str:
    """The variables of this process, those that it was started with, and what it can still read of its input."""
    started_with = Path("/proc/self/environ").read_text().split("\0")
    return json.dumps(
        {"now": dict(os.environ), "started_with": started_with, "input": os.read(0, 100).decode()}
    )


def search() -> str:
    """What this process and its parent know of the run's key and of tokens that are not this rollout's."""
    own = {os.environ["AGL_KEY"].encode(), os.environ["LS_REPORT_TOKEN"].encode()}
    found: set[bytes] = set()
    for process in ("self", str(os.getppid())):
        for text in everything(Path("/proc") / process):
            found.update(KEY.findall(text), TOKEN.findall(text))
    gained = f"GAINED {len(found - own)}" if found - own else "nothing else"
    return f"own tokens found: {len(found & own)}; {gained}"


def everything(process: Path) -> Iterator[bytes]:
    """Environment, open files and memory of a process, as far as it may be read."""
    yield (process / "environ").read_bytes()
    yield (process / "cmdline").read_bytes()
    for file in (process / "fd").iterdir():
        if file.is_file():
            yield file.read_bytes()
    with (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text().splitlines():
            area, mode, *_ = line.split()
            start, end = (int(number, 16) for number in area.split("-"))
            if mode.startswith("rw") and "[v" not in line:
                memory.seek(start)
                try:
                    yield memory.read(end - start)
                except OSError:  # a page that is mapped and not there
                    continue
