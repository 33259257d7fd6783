"""Runs an instance's official eval script in bubblewrap, on a tree of a local image.

What the official runner does in a container: write the patch, try four ways to apply it with a reset in
between, run the eval script with /bin/bash in /testbed, keep everything it prints. The tree comes from the
image at the task's base commit and is thrown away afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_smith.errors import UserError
from lightning_smith.evaluation.harness import Execution, ExecutionError
from lightning_smith.images.catalogue import ImageCatalogue
from lightning_smith.rollout.bwrap import Bwrap, Completed

PATCH = "/run/patch.diff"
EVAL_SCRIPT = "/run/eval.sh"

APPLY_TIMEOUT_S = 120.0

KEEP_BYTES = 20_000_000
"""Kept of a test run's output from its start, and as much from its end."""

_REPOSITORY = """
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=grader GIT_AUTHOR_EMAIL=grader@localhost
export GIT_COMMITTER_NAME=grader GIT_COMMITTER_EMAIL=grader@localhost
git init --quiet . && git add --all --force . && git commit --quiet --no-verify --message base
"""

APPLY = f"""
cd /testbed || exit 1
if git apply --verbose {PATCH}; then exit 0; fi
{_REPOSITORY}
reset_tree() {{ git checkout -- . ; git clean -fd ; }}
finish() {{ rm -rf .git; exit "$1"; }}
reset_tree; if git apply --verbose --3way {PATCH}; then finish 0; fi
reset_tree; if git apply --verbose --reject {PATCH}; then finish 0; fi
reset_tree; if patch --batch --forward --fuzz=5 -p1 -i {PATCH}; then finish 0; fi
if git apply --check --reverse {PATCH}; then finish 0; fi
finish 1
"""
"""The official attempts in their order. The tree of a local image has no .git, which only the later ones
need."""


class SandboxExecutor:
    """An `Execute` for local images; safe to call from several threads.

    Args:
        images: catalogue of the local images.
        sandbox: bubblewrap with the interpreter that the tests run in.
        scratch: folder for trees, best on a fast file system.
        timeout_s: seconds that one instance's tests may take.
    """

    def __init__(self, images: ImageCatalogue, sandbox: Bwrap, scratch: Path, timeout_s: float) -> None:
        self._images, self._sandbox, self._timeout_s = images, sandbox, timeout_s
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)

    def __call__(self, row: Mapping[str, Any], script: str, patch: bytes) -> Execution:
        """Apply `patch` to the row's base commit and run `script`; an empty patch is not applied.

        Raises ExecutionError if the tree or the sandbox cannot be had.
        """
        folder = Path(tempfile.mkdtemp(dir=self._scratch, prefix="grade-"))
        try:
            return self._execute(folder / "tree", row, script, patch)
        except (UserError, OSError) as error:
            raise ExecutionError(str(error)) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _execute(self, tree: Path, row: Mapping[str, Any], script: str, patch: bytes) -> Execution:
        self._images[row["image"]].checkout(row["base_commit"], tree)
        if patch:
            done = self._run(APPLY, tree, APPLY_TIMEOUT_S, {PATCH: patch})
            if done.returncode != 0:
                return Execution(done.output, applied=False, timed_out=False, seconds=done.wall_s)
        done = self._run(f"/bin/bash {EVAL_SCRIPT}", tree, self._timeout_s, {EVAL_SCRIPT: script.encode()})
        # A run that was ended for taking too many processes or too much disk leaves a log without an end
        # marker, which the official reader does not accept.
        return Execution(done.output, applied=True, timed_out=done.timed_out, seconds=done.wall_s)

    def _run(self, command: str, tree: Path, timeout_s: float, files: Mapping[str, bytes]) -> Completed:
        return self._sandbox.run(
            command, tree=tree, environment={}, timeout_s=timeout_s, files=files, keep_bytes=KEEP_BYTES
        )
