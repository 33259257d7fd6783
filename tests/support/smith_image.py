"""Docker images of repositories that SWE-smith's registry has profiles of: its layout and branches, tiny contents."""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker_image
import tiny_image

from lightning_smith.images.daemon import Daemon

ADDICT = "mewwts__addict.75284f95"
"""Its profile is the one that nearly all have: pytest over the whole suite, verbose lines."""
PROGRESS = "rsalmei__alive-progress.35853799"
"""The same profile."""
SLUGIFY = "un33k__python-slugify.872b3750"
"""Its profile runs `python test.py --verbose`."""

LOW = "tests/test_core.py::test_low"
SPAN = "tests/test_span.py::test_span"
SPAN_BUG = ("    return high - low\n", "    return low - high\n")
LOW_BUG = (tiny_image.FIXED_LINE, tiny_image.BUGGY_LINE)

UNITTEST_FILES = {
    "src/widget/__init__.py": tiny_image.FILES["src/widget/__init__.py"],
    "src/widget/core.py": tiny_image.CORE,
    "test.py": (
        "import unittest\nfrom widget import clamp, span\n\n\nclass TestCore(unittest.TestCase):\n"
        "    def test_low(self):\n        self.assertEqual(clamp(-1, 0, 3), 0)\n\n"
        "    def test_span(self):\n        self.assertEqual(span(0, 3), 3)\n\n\n"
        "if __name__ == '__main__':\n    unittest.main()\n"
    ),
}


@dataclass(frozen=True)
class SmithTask:
    """A task of such an image: its bug is a replacement in core.py, its branch lacks the files in `removed`."""

    repo: str
    name: str
    bug: tuple[str, str]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def instance_id(self) -> str:
        return f"{self.repo}.{self.name}"

    @property
    def buggy(self) -> str:
        assert self.bug[0] in tiny_image.CORE
        return tiny_image.CORE.replace(*self.bug)

    @property
    def fix(self) -> str:
        """A command that repairs the bug."""
        return f"sed -i 's|{self.bug[1].strip()}|{self.bug[0].strip()}|' src/widget/core.py"

    def row(self, **changes: Any) -> dict[str, Any]:
        """The task as a SWE-smith row."""
        return {
            "instance_id": self.instance_id,
            "patch": _diff(tiny_image.CORE, self.buggy),
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            "image_name": image_name(self.repo),
            "repo": f"swesmith/{self.repo}",
            "problem_statement": "widget is broken",
            **changes,
        }


CLAMP = SmithTask(ADDICT, "func_pm_op_change__0000000a", LOW_BUG, (LOW,), (SPAN,), ("tests/test_core.py",))
MIRRORED = SmithTask(ADDICT, "pr_7", SPAN_BUG, (SPAN,), (LOW,), ("tests/test_span.py",))
SLUG = SmithTask(
    SLUGIFY, "lm_rewrite__0000000c", LOW_BUG, ("test_low (__main__.TestCore.test_low)",),
    ("test_span (__main__.TestCore.test_span)",), ("test.py",),
)  # fmt: skip
"""Of Python 3.11 and newer, whose unittest names a test twice."""


def image_name(repo: str) -> str:
    return f"swebench/swesmith.x86_64.{repo.replace('__', '_1776_').lower()}"


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        "a/src/widget/core.py",
        "b/src/widget/core.py",
    )
    return "diff --git a/src/widget/core.py b/src/widget/core.py\n" + "".join(lines)


def build(
    daemon: Daemon, scratch: Path, tasks: Sequence[SmithTask], files: Mapping[str, str] = tiny_image.FILES
) -> str:
    """An image with the tasks' branches as `swesmith.harness.gather` makes them; returns its name."""
    origin = scratch / "origin"
    origin.mkdir(parents=True)

    def git(*arguments: str) -> None:
        settings = ["-c", "user.name=s", "-c", "user.email=s@example.org", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *settings, *arguments], cwd=origin, check=True, capture_output=True)

    def commit(message: str) -> None:
        git("add", "--all")
        git("commit", "--quiet", "-m", message)

    git("init", "--quiet")
    for name, text in files.items():
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(text)
    commit("Initial commit")
    for task in tasks:
        git("checkout", "--quiet", "-b", task.instance_id, "main")
        (origin / "src/widget/core.py").write_text(task.buggy)
        commit("Bug Patch")
        for path in task.removed:
            (origin / path).unlink()
        commit("Remove F2P Tests")
    git("checkout", "--quiet", "main")
    tree = docker_image.base_tree()
    tree.add(docker_image.clone(origin, scratch / "clone"), "testbed")
    return docker_image.import_image(daemon, tree, image_name(tasks[0].repo))
