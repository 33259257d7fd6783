"""Creates one of the locked uv environments under envs/ and says what is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file


def interpreter(project: Path) -> Path:
    """Return the Python of an environment that `create` made."""
    return project / ".venv" / "bin" / "python"


def create(project: Path, *, exact: bool = True) -> dict[str, Any]:
    """Install what `project/uv.lock` names; returns Python version, packages and lock hash.

    What else the environment has is removed if `exact`.
    Raise UserError where uv, the network or the disk fails; uv's own message has been printed before.
    """
    lock = project / "uv.lock"
    if not lock.is_file():
        raise UserError(f"{lock} does not exist: check out the repository again, environments are locked")
    # envs/testbed asks for byte code, with which pytest starts three times as fast; the variable would suppress it.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")}
    command = [os.environ.get("UV", "uv"), "sync", "--frozen", "--project", str(project)]
    command += [] if exact else ["--inexact"]
    print(f"[environment] {project}: {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        code = subprocess.run(command, env=environment).returncode
    except FileNotFoundError:
        raise UserError(
            "uv is not on the PATH: run through `make mini` or `scripts/with-uv`, which get it"
        ) from None
    if code != 0:
        raise UserError(
            f"uv could not create {project}/.venv (exit code {code}, its message is above): check the network, "
            "the package index and the free disk (envs/mini takes 6 GB), then run the same command again"
        )
    listing = subprocess.run(
        [
            str(interpreter(project)),
            "-c",
            "import importlib.metadata as m, json, platform;"
            "print(json.dumps({'python': platform.python_version(),"
            "'packages': dict(sorted((d.metadata['Name'], d.version) for d in m.distributions()))}))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return {"project": project.name, "lock_sha256": sha256_file(lock), **json.loads(listing.stdout)}
