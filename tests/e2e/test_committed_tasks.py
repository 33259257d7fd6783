"""The committed tasks come out of the generator again: same candidates, same test files, same bytes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.miniature.tasks.generate import Limits, bug_key
from lightning_smith.miniature.tasks.sources import fetch_sdist
from lightning_smith.miniature.tasks.table import Source, load_sources

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "assets" / "miniature"
SMITH = ROOT / "envs" / "smith" / ".venv" / "bin" / "python"


@pytest.fixture(scope="module")
def sources() -> dict[str, Source]:
    return {source.package: source for source in load_sources(ASSETS / "sources.tsv") if source.tests}


def make(folder: Path, source: Source, *arguments: str) -> Path:
    """Run the generator for one package; returns the package's folder of work."""
    kept = ROOT / "work" / "mini" / "sdists" / source.filename
    sdists = kept.parent if kept.exists() else folder / "sdists"
    fetch_sdist(source, sdists / source.filename)
    folders = {"--sdists": sdists, "--work": folder / "work", "--out": folder / "out"}
    command = [SMITH, "scripts/miniature/make_tasks.py", "--packages", source.package, *arguments]
    subprocess.run([*command, *(part for pair in folders.items() for part in pair)], cwd=ROOT, check=True)
    (work,) = (folder / "work").glob(f"{source.package}.*")
    return work


def committed_lines(source: Source) -> list[str]:
    lines = (ASSETS / "tasks" / f"{source.role}.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if json.loads(line)["package"] == source.package]


def committed_tests(package: str) -> dict[str, list[str]]:
    return json.loads((ASSETS / "tasks" / "tests.json").read_text(encoding="utf-8"))[package]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_committed_candidates_come_out_again(tmp_path: Path, sources: dict[str, Source]) -> None:
    """sqlparse has a test file that is slow on some machines and fast on others."""
    source = sources["sqlparse"]
    work = make(tmp_path, source, "--train-tries", "0")
    tried = {bug_key(row): row for row in read_lines(work / "candidates.jsonl")[: Limits().of(source)]}
    rows = [json.loads(line) for line in committed_lines(source)]
    assert rows
    for row in rows:
        made = tried[bug_key(row)]
        assert made == {name: row[name] for name in made}, row["instance_id"]
    reference = json.loads((work / "reference.json").read_text())
    for name, tests in committed_tests("sqlparse").items():
        assert reference[name]["passed"] == tests, name


def test_the_smallest_package_comes_out_the_same_byte_for_byte(
    tmp_path: Path, sources: dict[str, Source]
) -> None:
    source = sources["addict"]
    make(tmp_path, source, "--blank", "0", "--branchless", "0")
    assert (tmp_path / "out" / "train.jsonl").read_text(encoding="utf-8").splitlines() == committed_lines(
        source
    )
    assert json.loads((tmp_path / "out" / "tests.json").read_text()) == {"addict": committed_tests("addict")}
