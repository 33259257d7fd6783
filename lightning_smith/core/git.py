"""Git as the product runs it: the user's configuration, environment and hooks have no say.

    git(repository, "rev-parse", "main")

Everything that runs git calls `git()`, so that a diff or a commit has the same bytes on every machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lightning_smith.core.errors import UserError

_SETTINGS = {
    "advice.detachedHead": "false",
    "color.ui": "false",
    "commit.gpgSign": "false",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.excludesFile": os.devnull,
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.symlinks": "true",
    "diff.algorithm": "myers",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.renames": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # A repository that another user unpacked or mounted is read all the same: its own configuration
    # is written by `build.py` only.
    "safe.directory": "*",
}


class GitError(UserError):
    """A git command that ended with a non-zero status."""

    def __init__(
        self, arguments: tuple[str, ...], repository: Path | None, returncode: int, stderr: bytes
    ) -> None:
        self.returncode = returncode
        self.stderr = stderr
        reason = stderr.decode("utf-8", "replace").strip().split("\n")[-1] or f"exit status {returncode}"
        where = f" in {repository}" if repository else ""
        super().__init__(f"git {arguments[0]} failed{where}: {reason}")


def git(
    repository: Path | None,
    *arguments: str,
    stdin: bytes = b"",
    work_tree: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> bytes:
    """Run git on the git directory `repository` (None for commands that need none); returns its stdout.

    `work_tree` is given to git as such; `environment` adds variables, such as GIT_INDEX_FILE.
    Raise GitError for a non-zero status, UserError if git is not installed, subprocess.TimeoutExpired.
    """
    command = ["git"]
    for name, value in _SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    if repository is not None:
        command.append(f"--git-dir={repository.absolute()}")
    if work_tree is not None:
        command.append(f"--work-tree={work_tree.absolute()}")
    command += arguments
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            env=git_environment() | dict(environment or {}),
            cwd=work_tree,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        if error.filename != "git":
            raise
        raise UserError(
            "git is not installed: install it (apt-get install git) and run the same command again"
        ) from None
    if done.returncode != 0:
        raise GitError(arguments, repository, done.returncode, done.stderr)
    return done.stdout


def git_environment() -> dict[str, str]:
    """Return the process environment without GIT_ variables, with the configuration of user and system off."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return clean | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
