"""Which code wrote a file: the commit, and whether the tree was as committed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning_smith
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.core.git import git

CODE = (
    "Snakefile",
    "assets",
    "config.yaml",
    "config",
    "envs",
    "lightning_smith",
    "profiles",
    "pyproject.toml",
    "rules",
    "schemas",
    "scripts",
    "uv.lock",
)
"""What a result depends on. Other files of the checkout say nothing about it."""

_ROOT = Path(lightning_smith.__file__).resolve().parents[1]


@functools.cache
def code_version() -> dict[str, Any]:
    """`{"commit", "dirty"}` of the checkout when first asked; both None where the code is in no checkout of its own."""
    return version_of(_ROOT)


def version_of(root: Path) -> dict[str, Any]:
    """`{"commit", "dirty"}` of a checkout; both None if `root` is not the top of one, or git cannot read it."""
    repository = root / ".git"
    if not repository.exists():
        return {"commit": None, "dirty": None}
    present = [name for name in CODE if (root / name).exists()]
    status = ("--no-optional-locks", "status", "--porcelain", "--untracked-files=all", "--", *present)
    try:
        commit = git(repository, "rev-parse", "HEAD", work_tree=root).decode().strip()
        return {"commit": commit, "dirty": bool(git(repository, *status, work_tree=root))}
    except UserError:
        return {"commit": None, "dirty": None}


def write_manifest(path: Path | str, value: dict[str, Any]) -> dict[str, Any]:
    """Write a manifest: `value`, and under `code` what `code_version` says. Return what was written."""
    manifest = {**value, "code": code_version()}
    write_json(path, manifest)
    return manifest
