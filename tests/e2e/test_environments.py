"""The unit tests that need an environment under envs/ pass in it; the root environment skips them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEFT_OUT = ("VIRTUAL_ENV", "PYTEST_ADDOPTS")

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("environment", "marker"), [("mini", "torch"), ("eval", "swebench"), ("parity", "verl")]
)
def test_what_needs_an_environment_passes_in_it(environment: str, marker: str) -> None:
    files = [
        str(path)
        for path in sorted((ROOT / "tests/unit").rglob("test_*.py"))
        if f"mark.{marker}" in path.read_text()
    ]
    command = ["uv", "run", "--frozen", "--project", f"envs/{environment}", "--group", "test"]
    run = subprocess.run(
        [*command, "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-m", marker, *files],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in LEFT_OUT},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert re.search(r"^\d+ passed", run.stdout, re.M) and "skipped" not in run.stdout, run.stdout[-2000:]
