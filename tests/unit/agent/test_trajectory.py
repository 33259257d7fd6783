"""Trajectories have the shape that mini-swe-agent's inspector reads."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path

import pytest
from whole_settings import agent_settings

from lightning_smith.agent.trajectory import trajectory, trajectory_path, write_trajectory
from lightning_smith.contracts.outcome import Ending, Outcome, RolloutRecord
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.docker import DockerSandbox
from lightning_smith.sandbox.pod import PodSandbox

SETTINGS = agent_settings(system_template="system")
PATCH = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n-a\n+b\n \n \n"
MESSAGES = [
    {"role": "system", "content": "system", "extra": {"timestamp": 1.0}},
    {"role": "user", "content": "lone \ud800 surrogate, \u2028", "extra": {"timestamp": 2.0}},
    {"role": "assistant", "content": "```bash\nls\n```", "extra": {"actions": [{"command": "ls"}]}},
]


def record(
    outcome: Outcome | None, error: str | None = None, ending: Ending = Ending.SUBMITTED
) -> RolloutRecord:
    return RolloutRecord(
        *("task", 3, outcome, None, None, 1, 10, 2, 0.5, "policy", "r1", "sha256:0", 7),
        error=error,
        ending=ending,
    )


def test_document(tmp_path: Path) -> None:
    path = trajectory_path(tmp_path, "task", 3)
    document = trajectory(record(Outcome.SOLVED), MESSAGES, PATCH, SETTINGS, {"byte code": 2}, Bwrap)
    sha256 = write_trajectory(path, document)
    assert path == tmp_path / "task/3.traj.json"
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found = json.loads(path.read_text())
    assert found["trajectory_format"] == "mini-swe-agent-1.1" and found["instance_id"] == "task"
    assert [message["role"] for message in found["messages"]] == ["system", "user", "assistant", "exit"]
    assert found["messages"][:3] == MESSAGES
    info = found["info"]
    assert info["exit_status"] == "Submitted" and info["model_stats"]["api_calls"] == 1
    assert info["submission"].encode() == PATCH
    assert info["config"]["agent"]["max_turns"] == 4 and info["config"]["model"]["model_name"] == "policy"
    assert info["rollout"]["record"]["outcome"] == "solved"
    assert info["rollout"]["left_out_of_patch"] == {"byte code": 2}


def test_endings_have_mini_swe_agents_names_whatever_the_tests_say() -> None:
    """A rollout that never submitted is not "Submitted" because what it had changed solves the task."""
    names: dict[Ending, set[str]] = {}
    for outcome in (None, *Outcome):
        for ending in Ending:
            if outcome not in (Outcome.INFRA, Outcome.GRADER_ERROR):
                last = trajectory(record(outcome, "why", ending), [], b"", SETTINGS, {}, Bwrap)["messages"][
                    -1
                ]
                names.setdefault(ending, set()).add(last["extra"]["exit_status"])
                assert last["content"] == "why"
    assert names == {
        Ending.SUBMITTED: {"Submitted"},
        Ending.LIMIT: {"LimitsExceeded"},
        Ending.FORMAT: {"RepeatedFormatError"},
        Ending.REFUSALS: {"Blocked"},
        Ending.FAILURE: {"InfrastructureError"},
    }
    for outcome, name in ((Outcome.INFRA, "InfrastructureError"), (Outcome.GRADER_ERROR, "GraderError")):
        document = trajectory(record(outcome), [], b"", SETTINGS, {}, Bwrap)
        assert document["info"]["exit_status"] == name


@pytest.mark.parametrize("sandbox", [Bwrap, DockerSandbox, PodSandbox])
def test_environment_type_is_the_sandbox_that_ran(sandbox: type) -> None:
    document = trajectory(record(Outcome.SOLVED), [], b"", SETTINGS, {}, sandbox)
    module, _, name = document["info"]["config"]["environment_type"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is sandbox
