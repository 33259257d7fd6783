"""The environments that the tests run real parts in, created once, on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_smith.environments import create, interpreter

ENVIRONMENTS = Path(__file__).parents[1] / "envs"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Create what a fresh clone lacks: packages of the sandboxes, the policy server, the graders and the generator."""
    for name in ("testbed", "mini", "eval", "smith"):
        if not interpreter(ENVIRONMENTS / name).exists():
            create(ENVIRONMENTS / name)
