"""scripts/rollout.py as a person types it: scripted replies, a live endpoint, mistakes, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_image

from lightning_smith.agent.loop import SUBMIT_COMMAND

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

SECRET = "sk-not-for-the-policy"


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def processes(word: str) -> list[str]:
    """Command lines on this machine that hold a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


class Endpoint:
    """An OpenAI chat endpoint that answers from a list and keeps what it was asked."""

    def __init__(self, replies: list[str]) -> None:
        self.requests: list[dict[str, Any]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/chat/completions"
                assert self.headers["Authorization"] == f"Bearer {SECRET}"
                endpoint.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                message = {"role": "assistant", "content": replies[len(endpoint.requests) - 1]}
                answer = {"choices": [{"message": message}], "usage": {"prompt_tokens": 3}}
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line of a rollout by hand, without its policy."""
    scratch = tmp_path_factory.mktemp("by hand")
    tasks = tiny_image.write_tasks(scratch / "tasks.jsonl", tiny_image.row())
    command = [sys.executable, str(tiny_image.REPOSITORY / "scripts/rollout.py"), "--tasks", str(tasks)]
    return [
        *command,
        "--images",
        str(tiny_image.build(scratch / "images").parent),
        "--grades",
        str(scratch / "grades"),
    ]


def run_by_hand(command: list[str], *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=300,
    )


def write_replies(path: Path, *replies: str) -> str:
    path.write_text(json.dumps(replies))
    return str(path)


def test_by_hand(by_hand: list[str], tmp_path: Path) -> None:
    replies = write_replies(tmp_path / "r.json", bash("git log"), bash(tiny_image.FIX), bash(SUBMIT_COMMAND))
    done = run_by_hand(by_hand, "--task", tiny_image.TASK, "--scripted", replies)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "You are a software engineer" in done.stdout and "--- user | refused: git, git\n" in done.stdout
    assert "<returncode>0</returncode>" in done.stdout and "outcome: solved" in done.stdout
    assert f"\n+{tiny_image.FIXED_LINE}\n" in done.stdout and "blocked: {'git': 1}" in done.stdout


def test_by_hand_with_the_settings_of_another_experiment(by_hand: list[str], tmp_path: Path) -> None:
    mini = str(tiny_image.REPOSITORY / "config/mini.yaml")
    replies = write_replies(tmp_path / "r.json", *[bash("ls")] * 3)
    limit = ["--configfile", mini, "--set", '{"max_turns": 2}', "--scripted", replies]
    done = run_by_hand(by_hand, *limit)
    assert done.returncode == 0 and "You are a software engineer" not in done.stdout
    assert "outcome: agent_limit\n" in done.stdout and "error: no submission within 2 turns" in done.stdout


def test_by_hand_with_an_endpoint(by_hand: list[str]) -> None:
    endpoint = Endpoint([bash(tiny_image.FIX), bash(SUBMIT_COMMAND)])
    done = run_by_hand(
        by_hand,
        *("--model-url", f"{endpoint.url}/v1", "--seed", "11", "--request", '{"temperature": 0.5}'),
        OPENAI_API_KEY=SECRET,
    )
    endpoint.http.shutdown()
    assert done.returncode == 0 and "outcome: solved" in done.stdout, done.stderr
    assert "--- assistant | prompt 3 tokens, answer 0\n" in done.stdout
    asked = endpoint.requests[0]
    assert asked["temperature"] == 0.5 and asked["max_tokens"] == 12288
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--task", "nobody", "--scripted", "REPLIES"], "has no task nobody"),
        (["--scripted", "TASKS"], "is no JSON list of strings|is not valid JSON"),
        (
            ["--scripted", "absent.json"],
            "absent.json cannot be read .*: --scripted takes a JSON list of replies",
        ),
        (["--scripted", "/"], "/ cannot be read .*: --scripted takes a JSON list of replies"),
        (
            ["--scripted", "REPLIES", "--tasks", "PARQUET"],
            "PARQUET is a Parquet file, and JSON lines are read",
        ),
        (["--scripted", "REPLIES", "--tasks", "/"], "/ is a folder"),
        (["--scripted", "REPLIES", "--tasks", "/dev/null"], "/dev/null holds no task"),
        (
            ["--scripted", "REPLIES", "--set", '{"max_turns": "ten"}'],
            "max_turns: 'ten' is not a whole number",
        ),
        (["--scripted", "REPLIES", "--set", '{"max_turns": 2.5}'], "max_turns: 2.5 is not a whole number"),
        (["--scripted", "REPLIES", "--set", '{"max_turns": true}'], "max_turns: True is not a whole number"),
        (
            ["--scripted", "REPLIES", "--set", '{"command_timeout_s": null}'],
            "_s: None is not a number",
        ),
        (
            ["--scripted", "REPLIES", "--set", '{"rollout_timeout_s": Infinity}'],
            "it is infinite",
        ),
        (
            ["--scripted", "REPLIES", "--set", '{"system_template": 3}'],
            "system_template: 3 is no text",
        ),
        (
            ["--scripted", "REPLIES", "--set", '{"thinking": "no"}'],
            "thinking: 'no' is not true or false",
        ),
        (["--scripted", "REPLIES", "--configfile", "REPLIES"], "has no keys"),
        (["--scripted", "REPLIES", "--set", "{"], "argument --set: no JSON"),
        (
            ["--scripted", "REPLIES", "--set", '{"max_turn": 1}'],
            "max_turn: there is no such key .write max_turns",
        ),
        (["--scripted", "REPLIES", "--configfile", "absent.yaml"], "absent.yaml does not exist"),
        (["--scripted", "REPLIES", "--images", "absent"], "absent"),
        (["--scripted", "REPLIES"], "no verdict: the scripted replies have run out"),
        (["--model-url", "localhost:8000/v1"], "give one such as http://127.0.0.1:8000/v1"),
        ([], "one of the arguments --model-url --scripted is required"),
    ],
)
def test_mistakes_by_hand_are_named(
    by_hand: list[str], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    parquet = tmp_path / "PARQUET"
    pq.write_table(pa.Table.from_pylist([tiny_image.row()]), parquet)
    places = {
        "REPLIES": write_replies(tmp_path / "r.json", bash("ls")),
        "TASKS": by_hand[3],
        "PARQUET": str(parquet),
    }
    done = run_by_hand(by_hand, *[places.get(argument, argument) for argument in arguments])
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert re.search(f"error: .*({sentence})", done.stderr.strip().split("\n")[-1]), done.stderr


def test_by_hand_is_interrupted_and_piped(by_hand: list[str], tmp_path: Path) -> None:
    replies = write_replies(tmp_path / "r.json", bash("echo begun; sleep 3018"))
    rollout = subprocess.Popen(
        [*by_hand, "--scripted", replies], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline_s = time.monotonic() + 60
    while not processes("sleep 3018") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    rollout.send_signal(signal.SIGINT)
    _, said = rollout.communicate(timeout=60)
    assert (rollout.returncode, said) == (
        130,
        "interrupted: the rollout is given up, nothing of it is left running\n",
    )
    assert processes("sleep 3018") == []
    # It meets the closed pipe when it next has something to say.
    talkative = write_replies(tmp_path / "talkative.json", *[bash("ls")] * 20)
    shell = f"{shlex.join([*by_hand, '--scripted', talkative])} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("--- system\n141\n", "")
