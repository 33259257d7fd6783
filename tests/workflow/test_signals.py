"""`kill PID` of the workflow's process alone ends what it runs, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

SNAKEFILE = """
from lightning_smith.core.process import pass_signals_on

onstart:
    pass_signals_on()

rule stage:
    output: "out"
    log: "stage.log"
    shell: "{sys.executable} stage.py 2>&1 | tee -i {log}"
"""

STAGE = """
import sys, time
from pathlib import Path
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import Service

def main():
    service = Service("sleeper", ["sleep", "600"], log=Path("service.log"))
    try:
        Path("started").write_text(str(service.pid))
        time.sleep(600)
    finally:
        time.sleep(1)      # a second signal must not break this off
        service.stop()
        Path("closed").touch()

run_script(main)
"""


@pytest.mark.parametrize(
    ("number", "background"),
    [(signal.SIGINT, False), (signal.SIGTERM, True)],
    ids=["INT in a terminal", "TERM in the background"],
)
def test_a_signal_to_the_workflow_alone_ends_its_stages(
    tmp_path: Path, number: signal.Signals, background: bool
) -> None:
    """`background`: started by a shell with `&`, so that all of it ignores INT at first."""
    (tmp_path / "Snakefile").write_text("import sys\n" + SNAKEFILE)
    (tmp_path / "stage.py").write_text(STAGE)
    run = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1", "stage"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=(tmp_path / "run.log").open("wb"),
        stderr=subprocess.STDOUT,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if background else None,
        start_new_session=True,
    )
    started = tmp_path / "started"
    deadline = time.monotonic() + 90
    while not (started.exists() and started.read_text()):
        assert run.poll() is None and time.monotonic() < deadline, (tmp_path / "run.log").read_text()
        time.sleep(0.05)
    family = psutil.Process(run.pid).children(recursive=True)
    assert int(started.read_text()) in {process.pid for process in family}
    os.kill(run.pid, number)
    assert run.wait(timeout=30) == 1
    assert not psutil.wait_procs(family, timeout=5)[1]
    assert (tmp_path / "closed").exists(), "the stage did not close what it had started"
    said = (tmp_path / "run.log").read_text()
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
