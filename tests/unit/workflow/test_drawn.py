"""`make test` draws a part of the attacks and whole experiments by the commit; `make test-all` runs all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ATTACKS = "tests/attacks"


def collected(*options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-o", "addopts=", *options]
    run = subprocess.run([*command, ATTACKS], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in run.stdout.splitlines() if "::" in line]


def entry(test: str) -> str:
    """The id of a test without the kind of workspace that its parameters start with."""
    return re.sub(r"\[(bwrap|docker|pod)\b", "[", test)


def test_every_attack_runs_in_one_kind_of_workspace() -> None:
    drawn, everything = collected(), collected("--all")
    assert set(drawn) < set(everything)
    assert sorted(map(entry, drawn)) == sorted(set(map(entry, everything)))


def test_every_kind_and_every_whole_experiment_comes_round(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    assert conftest is not None

    class Item:
        def __init__(self, name: str, whole: bool) -> None:
            self.nodeid, self.whole = name, whole

        def get_closest_marker(self, name: str) -> object:
            return self if self.whole else None

    whole = [Item(f"tests/e2e/test_{number}.py::test_it", True) for number in range(30)]
    plain = [Item(f"tests/unit/test_{number}.py::test_it", False) for number in range(30)]
    found: set[Item] = set()
    for commit in range(40):
        drawn = conftest._drawn([*whole, *plain], str(commit))
        assert set(plain) <= drawn and 1 <= len(drawn & set(whole)) <= 20
        assert drawn == conftest._drawn([*whole, *plain], str(commit))
        found |= drawn
    assert found == {*whole, *plain}
