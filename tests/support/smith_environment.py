"""SWE-smith's own parsers, asked in a process of envs/smith that lives as long as the tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMITH = ROOT / "envs" / "smith" / ".venv" / "bin" / "python"

needs_smith = pytest.mark.skipif(
    not SMITH.exists(), reason="make it with uv sync --frozen --project envs/smith"
)

_PROGRAM = """
import json, sys
from lightning_smith.funnel.filters.gradable import OddIds
from lightning_smith.grading.smith_profiles import SmithProfiles
source = SmithProfiles()
odd = OddIds(source)
for line in sys.stdin:
    question = json.loads(line)
    profile = source.profile(question["repo"], "image")
    if "log" in question:
        answer = dict(source.parser(profile, ())(question["log"]))
    else:
        answer = [odd(profile, test) for test in question["tests"]]
    print(json.dumps(answer), flush=True)
"""


class SmithProcess:
    """Answers through SWE-smith's registry of profiles."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(SMITH), "-c", _PROGRAM], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        self._process.communicate()

    def odd(self, repo: str, tests: Sequence[str]) -> list[str | None]:
        """Why each id is odd under a repository's profile, or None."""
        return self._ask({"repo": repo, "tests": list(tests)})

    def read(self, repo: str, log: str) -> dict[str, str]:
        """What the profile's parser reads."""
        return self._ask({"repo": repo, "log": log})

    def _ask(self, question: dict[str, object]):
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
