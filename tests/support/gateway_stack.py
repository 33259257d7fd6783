"""Real gateway and controller with a trivial agent and a stub policy, for the tests beside it."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from lightning_smith.gateway.launch import PolicyServer, Stack

FOLDER = Path(__file__).resolve().parent
AGENT = "trivial_agent:Agent"


@dataclass(frozen=True)
class StubPolicy(PolicyServer):
    """A policy server without a model; `fault` is what is wrong with it."""

    model_dir: Path = Path()
    model_name: str = "stub"
    revision: str = "r0"
    fault: str = ""

    def command(self, port: int) -> list[str]:
        return [sys.executable, str(FOLDER / "stub_policy.py"), str(port), self.fault]


@dataclass
class Mark:
    """A variable in the environment of the controller and its rollouts by which they are found again."""

    value: str = field(default_factory=lambda: uuid.uuid4().hex)

    def environment(self) -> dict[str, str]:
        return {"LS_TEST_MARK": self.value, "PYTHONPATH": str(FOLDER)}

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and self.value in process.environ().values():
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


def make_stack(folder: Path, mark: Mark, **options: Any) -> Stack:
    """A stack in `folder` that answers quickly."""
    settings = {
        "policy": StubPolicy(),
        "stage_file": None,
        "max_rollouts": 8,
        "poll_interval_s": 0.1,
        **options,
    }
    return Stack(folder, agent=AGENT, environment=mark.environment(), **settings)
