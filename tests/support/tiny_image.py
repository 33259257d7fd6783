"""A small local image with one task, for rollouts and gradings in a real sandbox."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import whole_settings

from lightning_smith.core.files import sha256_file
from lightning_smith.miniature.repositories import ImageRecipe, TaskBranch, build_image
from lightning_smith.repositories.names import image_key

REPOSITORY = Path(__file__).resolve().parents[2]
TESTBED_PYTHON = REPOSITORY / "envs/testbed/.venv/bin/python"
NEEDS_TESTBED = pytest.mark.skipif(
    not TESTBED_PYTHON.exists(),
    reason="needs the testbed: uv sync --frozen --compile-bytecode --project envs/testbed",
)

AGENT: dict[str, Any] = {
    **whole_settings.AGENT,
    "max_turns": 6,
    "max_tokens": 64,
    "observation_chars": 2000,
    "command_timeout_s": 60,
    "rollout_timeout_s": 600,
    "max_format_errors": 1,
    "grading_timeout_s": 60,
    "system_template": "Fix the bug. Reply with one bash block.",
    "instance_template": "{problem_statement}",
}
"""Settings of an agent for rollouts in the image."""

IMAGE_NAME = "swesmith/swesmith.x86_64.pypi_1776_widget.0badcafe"
TASK = "pypi__widget.0badcafe.func_pm_cmp_change__00000001"

CORE = """\"\"\"Numbers kept within limits.\"\"\"


def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


def span(low, high):
    return high - low
"""
FIXED_LINE, BUGGY_LINE = "    if value < low:", "    if value >= low:"
BUG = f"""\
diff --git a/src/widget/core.py b/src/widget/core.py
--- a/src/widget/core.py
+++ b/src/widget/core.py
@@ -4,3 +4,3 @@
 def clamp(value, low, high):
-{FIXED_LINE}
+{BUGGY_LINE}
         return low
"""
"""The patch that made the bug."""
FIX = f"sed -i 's|{BUGGY_LINE}|{FIXED_LINE}|' src/widget/core.py"

FILES = {
    "src/widget/__init__.py": "from widget.core import clamp, span\n",
    "src/widget/core.py": CORE,
    "tests/test_core.py": (
        "import pytest\nfrom widget import clamp\n\n\n"
        "@pytest.mark.parametrize('value', [1, 2], ids=['one - 1', 'two [2]'])\n"
        "def test_inside(value):\n    assert clamp(value, 0, 3) == value\n\n\n"
        "def test_low():\n    assert clamp(-1, 0, 3) == 0\n"
    ),
    "tests/test_span.py": (
        "from helpers import THREE\nfrom widget import span\n\n\ndef test_span():\n    assert span(0, 3) == THREE\n"
    ),
    "tests/helpers.py": "THREE = 3\n",
    "tests/conftest.py": "import os\n\nos.environ['PY_COLORS'] = '1'\n",
    "pytest.ini": "[pytest]\naddopts = --color=yes -rA --maxfail=1\n",
    "README": "widget\n",
}
FAIL_TO_PASS = [
    "tests/test_core.py::test_inside[one - 1]",
    "tests/test_core.py::test_inside[two [2]]",
    "tests/test_core.py::test_low",
]
PASS_TO_PASS = ["tests/test_span.py::test_span"]


def build(images: Path, files: Mapping[str, str] = FILES) -> Path:
    """Build the image below `images`, of `files` in place of the usual ones; returns its folder."""
    images.mkdir(parents=True, exist_ok=True)
    sdist = images / "widget-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"widget-1.0/{name}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    bug = {"src/widget/core.py": CORE.replace(FIXED_LINE, BUGGY_LINE).encode()}
    recipe = ImageRecipe(
        image_name=IMAGE_NAME,
        package="widget",
        version="1.0",
        sdist=sdist,
        sdist_sha256=sha256_file(sdist),
        pythonpath="src",
        branches=(TaskBranch(TASK, bug, ("tests/test_core.py",)),),
    )
    build_image(images / image_key(IMAGE_NAME), recipe, TESTBED_PYTHON)
    return images / image_key(IMAGE_NAME)


def row(**changes: Any) -> dict[str, Any]:
    """The task as a SWE-smith row."""
    return {
        "instance_id": TASK,
        "patch": "",
        "FAIL_TO_PASS": FAIL_TO_PASS,
        "PASS_TO_PASS": PASS_TO_PASS,
        "image_name": IMAGE_NAME,
        "repo": "swesmith/pypi__widget.0badcafe",
        "problem_statement": "clamp in src/widget/core.py is broken: a comparison is wrong in lines 1-7.",
        **changes,
    }


def write_tasks(path: Path, *rows: dict[str, Any]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
