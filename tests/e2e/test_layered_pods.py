"""Pods of an image with the agent layer, out of which harness and executors run: rollouts, and certified tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_image
import whole_settings
from layer_fixtures import forget_made, make
from plain_pod import PlainPod

from lightning_smith.core.files import read_jsonl
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.layer import AgentLayer
from lightning_smith.sandbox import executor
from lightning_smith.sandbox.bwrap import ResourceLimits

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]


@pytest.fixture
def layered_pod(daemon: Daemon, docker_image_name: str, layer: AgentLayer) -> Iterator[PlainPod]:
    """A pod whose harness and executors are those of the agent layer."""
    tag = make(daemon, docker_image_name, layer)["image"]["tags"][0]
    pod = PlainPod(daemon, docker_image_name, ResourceLimits(), tag)
    yield pod
    pod.close()
    forget_made(daemon)


ROLLOUTS = """
import json, os, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from lightning_smith.agent.rollout import Agent

replies, events = json.loads(sys.argv[1]), []

class Gateway(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/event":
            events.append(body)
            answer = {}
        else:
            message = {"role": "assistant", "content": replies.pop(0)}
            answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass

server = HTTPServer(("127.0.0.1", 0), Gateway)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
for sample in ("0", "1"):
    Agent({
        "AGL_OPENAI_BASE_URL": f"{url}/v1", "AGL_EVENT_URL": f"{url}/event", "AGL_KEY": "key",
        "LS_REPORT_TOKEN": "report",
        "LS_STAGE_FILE": "/run/task/stage.json", "LS_INSTANCE_ID": sys.argv[2], "LS_SAMPLE": sample, "LS_SEED": "1",
        "LS_GRADE": "1",
    }).run()
print(json.dumps(events))
"""


def test_rollouts_in_a_whole_pod_by_what_the_layer_holds(layered_pod: PlainPod, tmp_path: Path) -> None:
    """From the controller's variables to the events: a policy that repairs the bug, and one that makes another."""
    settings = {
        "tasks": "/run/task/tasks.jsonl",
        "images": "/run/pod",
        "workspace": "pod",
        "model": "policy",
        "scratch": "/tmp",
        "agent": {
            **whole_settings.AGENT,
            **{"command_timeout_s": 60, "rollout_timeout_s": 300, "grading_timeout_s": 60},
        },
    }
    os.chown(tmp_path, executor.OWN_USER, executor.OWN_USER)
    (tmp_path / "stage.json").write_text(json.dumps(settings))
    tiny_image.write_tasks(tmp_path / "tasks.jsonl", tiny_image.row())
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    commands = [
        tiny_image.FIX,
        "git log",
        submit,
        "echo 'def clamp(*_): return 7' >> src/widget/core.py",
        submit,
    ]
    replies = json.dumps([f"```bash\n{command}\n```" for command in commands])
    said = layered_pod.run_harness(
        "-c", ROLLOUTS, replies, tiny_image.TASK, binds=[f"{tmp_path}:/run/task:ro"]
    )
    events = json.loads(said)
    records = [event["data"] for event in events if event["event_type"] == "outcome"]
    assert [record["outcome"] for record in records] == ["solved", "unsolved"], said
    assert [event["data"]["value"] for event in events if event["event_type"] == "reward"] == [1.0, 0.0]
    assert records[0]["checks"] == ["canary", "mixed"] and records[0]["blocked"] == {"git": 1}
    assert [record["turns"] for record in records] == [3, 2]
    assert {record["image_digest"] for record in records} == {layered_pod.image_id}


def test_the_tasks_of_a_pods_image_are_certified_in_it(layered_pod: PlainPod, tmp_path: Path) -> None:
    """The task holds, and one whose bug lies elsewhere is named; a second run makes nothing twice."""
    os.chown(tmp_path, executor.OWN_USER, executor.OWN_USER)
    other = tiny_image.row(
        image_name="swesmith/swesmith.x86_64.acme_1776_other.0badcafe", instance_id="other"
    )
    rows = [tiny_image.row(patch=tiny_image.BUG), other]
    tasks = tiny_image.write_tasks(tmp_path / "tasks.jsonl", *rows)
    command = [
        "-m",
        "lightning_smith.grading.pod_tasks",
        "--pod",
        "/run/pod",
        "--tasks",
        "/run/task/tasks.jsonl",
    ]
    command += ["--timeout", "60", "--log", "/run/task/log.jsonl"]
    said = layered_pod.run_harness(*command, binds=[f"{tmp_path}:/run/task"])
    assert "1 tasks: 1 empty unsolved, 1 gold solved\n" in said
    log = (tmp_path / "log.jsonl").read_bytes()
    assert {record["image_digest"] for record in read_jsonl(tmp_path / "log.jsonl")} == {layered_pod.image_id}
    assert "1 gold solved" in layered_pod.run_harness(*command, binds=[f"{tmp_path}:/run/task"])
    assert (tmp_path / "log.jsonl").read_bytes() == log
    tiny_image.write_tasks(tasks, tiny_image.row(patch=tiny_image.BUG.replace("value", "other")))
    said = layered_pod.run_harness(*command, binds=[f"{tmp_path}:/run/task"])
    assert "error: 1 of 1 tasks are not what they say (see /run/task/log.jsonl):" in said
    assert f"  {tiny_image.TASK}: gold_fails\n" in said
