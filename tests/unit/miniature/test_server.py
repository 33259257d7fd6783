"""The policy server as its clients see it: a real process, real HTTP."""

from __future__ import annotations

import base64
import io
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
httpx = pytest.importorskip("httpx")

import numpy as np
import tiny_policy

pytestmark = pytest.mark.torch


@dataclass
class Server:
    """A running policy server and a client of it."""

    process: subprocess.Popen[bytes]
    http: Any
    folder: Path

    def chat(self, **fields: Any) -> dict[str, Any]:
        """One answer; `fields` are laid over a plain request."""
        response = self.http.post("/v1/chat/completions", json=body(**fields))
        assert response.status_code == 200, response.text
        return response.json()


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": tiny_policy.messages(), "max_tokens": 12, "seed": 1, **fields}


def start(folder: Path, *flags: str) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "lightning_smith.miniature.policy.server", "--model", str(folder)]
    process = subprocess.Popen([*command, "--model-name", "policy", "--port", str(port), *flags])
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    for _ in range(1200):
        assert process.poll() is None, "the server ended while it started"
        try:
            if client.get("/health").status_code == 200:
                return Server(process, client, folder)
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not answer within two minutes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a tiny mixture of experts, in bf16, with recorded experts."""
    folder = tiny_policy.write(tmp_path_factory.mktemp("server") / "moe", "moe")
    running = start(folder, "--dtype", "bfloat16", "--routed-experts")
    yield running
    running.process.kill()
    running.process.wait()


def test_answer_has_what_the_gateway_reads(server: Server):
    answer = server.chat(logprobs=True, return_routed_experts=True)
    choice = answer["choices"][0]
    prompt, tokens = answer["prompt_token_ids"], choice["token_ids"]
    assert len(prompt) > 20 and 1 <= len(tokens) <= 12
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(tokens),
        "total_tokens": len(prompt) + len(tokens),
    }
    log_probs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert len(log_probs) == len(tokens) and all(value <= 0 for value in log_probs)
    routes = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
    assert routes.shape == (len(prompt) + len(tokens) - 1, 2, 2) and routes.dtype == np.uint8
    assert choice["finish_reason"] in ("stop", "length")
    assert "<|im_end|>" not in choice["message"]["content"]


def test_what_is_not_asked_for_is_left_out(server: Server):
    choice = server.chat()["choices"][0]
    assert "logprobs" not in choice and "routed_experts" not in choice


def test_same_seed_same_answer_and_other_seeds_other_answers(server: Server):
    """Alone and in company: eight rollouts of a group sent at once, and one of them again on its own."""
    with ThreadPoolExecutor(8) as pool:
        group = list(pool.map(lambda seed: server.chat(seed=seed)["choices"][0]["token_ids"], range(8)))
    assert len({tuple(tokens) for tokens in group}) == 8
    assert server.chat(seed=5)["choices"][0]["token_ids"] == group[5]
    assert server.http.get("/stats").json()["batches"] < server.http.get("/stats").json()["requests"]


def test_requests_without_a_seed_differ(server: Server):
    answers = {tuple(server.chat(seed=None)["choices"][0]["token_ids"]) for _ in range(3)}
    assert len(answers) > 1


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"model": "gpt"}, 404, "not served"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text contents"),
        ({"messages": [{"role": "user", "content": "x " * 400}]}, 400, "no room for an answer"),
        ({"stream": True}, 400, "stream"),
        ({"n": 2}, 400, "n=2"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(
    server: Server, fields: dict[str, Any], status: int, sentence: str
):
    response = server.http.post("/v1/chat/completions", json=body(**fields))
    assert response.status_code == status
    assert sentence in response.json()["error"]["message"]


def test_weights_are_swapped_and_the_version_reported(server: Server, tmp_path: Path):
    before = server.chat()["choices"][0]["token_ids"]
    other = tiny_policy.write(tmp_path / "other", "moe", seed=1)
    swapped = server.http.post("/weights", json={"path": str(other), "version": 3})
    assert swapped.json()["version"] == 3
    assert server.http.get("/health").json() == {"status": "ok", "version": 3}
    assert server.chat()["choices"][0]["token_ids"] != before

    refused = server.http.post("/weights", json={"path": str(tmp_path / "absent"), "version": 4})
    assert refused.status_code == 400 and "absent" in refused.json()["error"]["message"]
    assert server.http.get("/health").json()["version"] == 3
    server.http.post("/weights", json={"path": str(server.folder), "version": 0})
    assert server.chat()["choices"][0]["token_ids"] == before


def test_sigterm_answers_what_is_in_flight_and_ends(tmp_path: Path):
    running = start(tiny_policy.write(tmp_path / "dense"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(running.chat, max_tokens=200)
        time.sleep(0.1)
        running.process.send_signal(signal.SIGTERM)
        assert answer.result()["choices"][0]["token_ids"]
    assert running.process.wait(timeout=20) in (0, 143, -signal.SIGTERM)
