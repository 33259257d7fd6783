"""Trajectories in the format of mini-swe-agent 1.1, so that its inspector opens them.

mini-extra inspect work/mini/probe/*/trajectories
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_smith import __version__
from lightning_smith.agent.chat import Message
from lightning_smith.config.agent import AgentSettings
from lightning_smith.contracts.outcome import Ending, Outcome, RolloutRecord
from lightning_smith.core.files import write_atomic

FORMAT = "mini-swe-agent-1.1"

_EXIT_STATUS = {
    Ending.SUBMITTED: "Submitted",
    Ending.LIMIT: "LimitsExceeded",
    Ending.FORMAT: "RepeatedFormatError",
    Ending.REFUSALS: "Blocked",
    Ending.FAILURE: "InfrastructureError",
}
"""mini-swe-agent's name for how a conversation ended, whatever the tests say of what it left."""

_NO_VERDICT = {Outcome.GRADER_ERROR: "GraderError", Outcome.INFRA: "InfrastructureError"}


def trajectory_path(folder: Path, instance_id: str, sample: int) -> Path:
    """Return where a rollout's trajectory is."""
    return folder / instance_id / f"{sample}.traj.json"


def trajectory(
    record: RolloutRecord,
    messages: list[Message],
    patch: bytes,
    settings: AgentSettings,
    left_out: Mapping[str, int],
    sandbox: type,
) -> dict[str, Any]:
    """Return the document: conversation, settings, the patch as text; our own things are below `info.rollout`.

    `sandbox` is the class of what ran the commands.
    """
    status = _NO_VERDICT.get(record.outcome) if record.outcome else None
    status = status or _EXIT_STATUS[record.ending or Ending.FAILURE]
    submission = patch.decode("utf-8", "surrogateescape")
    ending: Message = {
        "role": "exit",
        "content": record.error or status,
        "extra": {"exit_status": status, "submission": submission},
    }
    return {
        "info": {
            "model_stats": {"instance_cost": 0.0, "api_calls": record.turns},
            "config": {
                "agent": asdict(settings),
                "agent_type": "lightning_smith.agent.loop",
                "model": {"model_name": record.model, "revision": record.model_revision, "seed": record.seed},
                "model_type": "lightning_smith.agent.chat.ChatModel",
                "environment": {"image_digest": record.image_digest, "cwd": "/testbed"},
                "environment_type": f"{sandbox.__module__}.{sandbox.__qualname__}",
            },
            "mini_version": f"lightning-smith {__version__}",
            "exit_status": status,
            "submission": submission,
            "rollout": {"record": record.to_dict(), "left_out_of_patch": dict(left_out)},
        },
        "messages": [*messages, ending],
        "trajectory_format": FORMAT,
        "instance_id": record.instance_id,
    }


def write_trajectory(path: Path, document: dict[str, Any]) -> str:
    """Write it atomically, in ASCII (replies may hold what UTF-8 does not take); returns its sha256."""
    data = json.dumps(document, indent=1).encode("ascii")
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()
