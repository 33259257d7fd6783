"""Rooms of the package import only rooms below them, without exceptions."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_rooms_import_only_rooms_below_them() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as c; c()",
        "--no-cache",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0 and "Contracts: 1 kept, 0 broken." in run.stdout, run.stdout + run.stderr


def test_every_room_is_in_the_contract_and_no_import_is_an_exception() -> None:
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = {path.parent.name for path in (ROOT / "lightning_smith").glob("*/__init__.py")}
    assert set(contract["layers"]) == rooms
    assert "ignore_imports" not in contract
