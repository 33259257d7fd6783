"""Candidate bugs from SWE-smith's modifiers, made in envs/smith."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.miniature.policy.conversation import OPERATOR_FAMILIES, Edit, sed_command

ROOT = Path(__file__).resolve().parents[3]
SMITH = ROOT / "envs" / "smith" / ".venv" / "bin" / "python"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not SMITH.exists(), reason="make it with uv sync --frozen --project envs/smith"),
]

CODE = '''\
import functools


class Box:
    """A class whose methods are indented."""

    limit = 3 + 4

    @functools.lru_cache(
        maxsize=8
    )
    def inside(self, x, names=()):
        """a == b in the docstring stays"""
        if x < self.limit and x not in names:  # a trailing comment with + in it
            return x*2 - 1
        def helper(y):
            return y is not None or x == 3
        return helper

    async def later(self, x):
        return x + 1


def untouched(x):
    return x + 1


def one_line(x): return x % 10  # tail
'''

PROGRAM = """
import json, sys
from pathlib import Path
from lightning_smith.miniature.tasks import bugs
tree, executed = Path(sys.argv[1]), json.loads(sys.argv[2])
functions = None if executed is None else {tuple(each) for each in executed}
found = [bug.to_dict() for bug in bugs.bugs_of_file(tree, "box.py", functions)]
print(json.dumps({"files": bugs.source_files(tree, "."), "bugs": found}))
"""


def find_bugs(tree: Path, executed: list[list[Any]] | None = None) -> dict[str, Any]:
    command = [str(SMITH), "-c", PROGRAM, str(tree), json.dumps(executed)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    (tree / "box.py").write_text(CODE)
    (tree / "tests").mkdir()
    (tree / "tests" / "helper.py").write_text("x = 1\n")
    (tree / "odd name.py").write_text("x = 1\n")
    return tree


@pytest.fixture(scope="module")
def bugs(tree: Path) -> list[dict[str, Any]]:
    return find_bugs(tree)["bugs"]


def test_bugs_are_one_valid_line_that_sed_repairs(bugs: list[dict[str, Any]], tmp_path: Path) -> None:
    from lightning_smith.miniature.policy.conversation import find_repair

    lines = CODE.split("\n")
    for bug in bugs:
        assert lines[bug["line"] - 1] == bug["fixed"] != bug["buggy"]
        broken = [*lines]
        broken[bug["line"] - 1] = bug["buggy"]
        assert ast.dump(ast.parse("\n".join(broken))) != ast.dump(ast.parse(CODE))
        repair = find_repair(bug["buggy"], bug["fixed"])
        assert repair is not None
        old, new, nth = repair
        (tmp_path / "box.py").write_text("\n".join(broken))
        command = sed_command("box.py", Edit(bug["line"], old, new, nth))
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        repaired = (tmp_path / "box.py").read_text()
        assert ast.dump(ast.parse(repaired)) == ast.dump(ast.parse(CODE)), command
    assert len({(bug["line"], bug["buggy"]) for bug in bugs}) == len(bugs)


def test_kinds_and_functions(bugs: list[dict[str, Any]]) -> None:
    where = {(bug["entity"], bug["kind"]) for bug in bugs}
    assert where >= {("inside", "cmp"), ("inside", "bool"), ("inside", "arith"), ("inside", "const")}
    assert where >= {("helper", "cmp"), ("helper", "bool"), ("one_line", "arith")}
    assert not any(bug["line"] in (7, 13) for bug in bugs), "class bodies and docstrings stay"
    assert {bug["entity_first"] for bug in bugs if bug["entity"] == "inside"} == {9}, "the decorator's line"
    for bug in bugs:
        if bug["kind"] == "cmp":
            families = OPERATOR_FAMILIES["cmp"]
            assert any(f" {operator} " in bug["buggy"] for family in families for operator in family)


def test_only_executed_functions_are_broken(tree: Path) -> None:
    found = find_bugs(tree, [["box.py", 28]])["bugs"]
    assert found
    assert {bug["entity"] for bug in found} == {"one_line"}
    assert all(bug["buggy"].endswith("  # tail") for bug in found)
    assert find_bugs(tree, [["other.py", 28]])["bugs"] == []


def test_the_same_bugs_every_time(tree: Path, bugs: list[dict[str, Any]]) -> None:
    again = find_bugs(tree)
    assert again["bugs"] == bugs
    assert again["files"] == ["box.py"], "tests and names that need quotes are left out"
