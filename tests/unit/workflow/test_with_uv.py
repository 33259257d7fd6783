"""scripts/with-uv finds Python 3.12 among others, and says so at once where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECTS = [ROOT / "pyproject.toml", *sorted((ROOT / "envs").glob("*/pyproject.toml"))]


def another_python() -> str:
    """Return an interpreter of this machine that is not 3.12."""
    installed = map(str, Path.home().glob(".pyenv/versions/3.13*/bin/python3"))
    places = ["python3.13", *installed, "/usr/bin/python3"]
    ask = "import sys; sys.exit(sys.version_info[:2] == (3, 12))"
    for place in places:
        try:
            if subprocess.run([place, "-c", ask], capture_output=True, check=False).returncode == 0:
                return shutil.which(place) or place
        except OSError:
            continue
    pytest.skip("no Python but 3.12 is on this machine")


def with_uv(folder: Path, pythons: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run with-uv where these Pythons, by the names that they have on the PATH, are all that there is."""
    uv = shutil.which("uv")
    assert uv, "the tests run under uv"
    programs = folder / "bin"
    programs.mkdir()
    (programs / "uv").symlink_to(uv)
    for name in ("sh", "dirname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name, python in pythons.items():
        # Not a link: an interpreter looks for its library beside the file that it was started as.
        (programs / name).write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        "PATH": str(programs),
        "HOME": str(folder),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PYTHON_INSTALL_DIR": str(folder / "managed"),
        "UV_CACHE_DIR": str(folder / "cache"),
    }
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts/with-uv"), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_other_pythons_alone_are_refused_with_the_one_that_is_needed(tmp_path: Path) -> None:
    other = another_python()
    done = with_uv(tmp_path, {"python3.13": other, "python3": other}, "sh", "-c", "echo started")
    assert done.returncode == 1 and not done.stdout
    assert "error: no Python 3.12 is here and uv could not download one: install python3.12" in done.stderr


@pytest.mark.parametrize("name", ["python3.12", "python3"])
def test_python_3_12_is_found_beside_others(tmp_path: Path, name: str) -> None:
    other = another_python()
    pythons = {"python3.13": other, "python3": other} | {name: os.path.realpath(sys.executable)}
    done = with_uv(tmp_path, pythons, "uv", "python", "find", "--project", str(ROOT / "envs/testbed"))
    assert done.returncode == 0, done.stderr
    version = [done.stdout.strip(), "-c", "import sys; print(sys.version_info[:2])"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout == "(3, 12)\n"


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_every_environment_asks_for_the_same_python(project: Path) -> None:
    """One that took 3.13 would let a run begin that ends at the first environment that does not."""
    assert tomllib.loads(project.read_text())["project"]["requires-python"] == ">=3.12,<3.13"
