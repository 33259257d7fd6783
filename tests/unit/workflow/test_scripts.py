"""Every script can be asked what it does in the environment that a user has, which lacks torch and swebench."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[3] / "scripts").rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_needs_no_other_environment(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location(f"script_{script.stem}", script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit) as end:
        module.main(["--help"])
    said = capsys.readouterr()
    assert end.value.code == 0 and said.out.startswith("usage: ") and not said.err


def test_a_package_of_another_environment_is_named_with_it() -> None:
    script = Path(__file__).parents[3] / "scripts/miniature/make_warm_start.py"
    done = subprocess.run(
        [sys.executable, str(script), "--demonstrations", "absent", "--out", "out", "--work", "work"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: torch is not in this Python's environment: run the script with ")
    assert f"`uv run --frozen --project envs/mini python {script} ...`" in done.stderr
