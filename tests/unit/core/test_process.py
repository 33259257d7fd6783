"""Services that die with their parent, stage locks and the orphan watch, with real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.process import (
    Service,
    free_port,
    is_running,
    minimal_environment,
    process_stat,
    session_members,
    stage_lock,
    workflow_ancestors,
)


def wait_for(condition: Callable[[], object], timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is None or not stat.running


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def python(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_service_stops_with_all_its_session(tmp_path: Path) -> None:
    # The grandchild has a process group of its own and ignores TERM.
    script = "trap '' TERM; set -m; (trap '' TERM; echo up; sleep 60) & wait"
    service = Service("demo", ["bash", "-c", script], log=tmp_path / "demo.log")
    assert wait_for(lambda: "up" in service.log_tail())
    assert len(session_members(service.pid)) >= 2
    service.stop(grace_s=0.3)
    assert session_members(service.pid) == []
    assert service.exit_code() == -signal.SIGKILL
    service.stop()


def test_ended_service_is_named_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    log.write_text("of an earlier start\n")
    service = Service("demo", ["sh", "-c", "echo no licence; exit 3"], log=log)
    assert wait_for(lambda: service.exit_code() is not None)
    with pytest.raises(UserError, match=r"demo ended with exit code 3; .*demo\.log ends with:\nno licence$"):
        service.check()
    service.stop()
    assert "of an earlier start" in log.read_text()


def test_a_service_s_last_sentence_is_passed_on(tmp_path: Path) -> None:
    script = "echo loading; echo error: the licence is absent, buy one; exit 1"
    service = Service("demo", ["sh", "-c", script], log=tmp_path / "demo.log")
    assert wait_for(lambda: service.exit_code() is not None)
    with pytest.raises(UserError, match=r"^the licence is absent, buy one \(from the demo, .*demo\.log\)$"):
        service.check()
    service.stop()


def test_absent_program_is_an_ended_service(tmp_path: Path) -> None:
    service = Service("demo", [str(tmp_path / "absent")], log=tmp_path / "log")
    assert wait_for(lambda: service.exit_code() is not None)
    with pytest.raises(UserError, match=r"cannot start .*absent"):
        service.check()
    service.stop()


def test_service_dies_with_a_killed_parent(tmp_path: Path) -> None:
    parent = write(
        tmp_path / "parent.py",
        """
        import sys, time
        from pathlib import Path
        from lightning_smith.core.process import Service
        print(Service("demo", ["sleep", "60"], log=Path(sys.argv[1])).pid, flush=True)
        time.sleep(60)
        """,
    )
    process = python(parent, str(tmp_path / "log"))
    assert process.stdout
    pid = int(process.stdout.readline())
    assert wait_for(lambda: process_stat(pid) is not None)
    process.kill()
    process.wait()
    assert wait_for(lambda: gone(pid), 3)


def test_a_secret_goes_through_standard_input(tmp_path: Path) -> None:
    log = tmp_path / "log"
    service = Service("demo", ["sh", "-c", "cat; readlink /proc/self/fd/0"], log=log, secret="s3cret")
    assert wait_for(lambda: service.exit_code() == 0)
    lines = log.read_text().splitlines()
    assert lines[1] == "s3cret" and lines[2].startswith("pipe:") and "s3cret" not in lines[0]
    service.stop()


def test_environment_keeps_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("http_proxy", "http://proxy")
    monkeypatch.setenv("PYTHONPATH", "/x")
    environment = minimal_environment(AGL_KEY="k")
    assert environment["AGL_KEY"] == "k" and environment["PATH"] == os.environ["PATH"]
    assert not {"AWS_SECRET_ACCESS_KEY", "http_proxy", "PYTHONPATH"} & set(environment)


def test_free_port_is_below_the_ephemeral_range() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < first for _ in range(20))


def test_recycled_pid_is_not_the_process() -> None:
    stat = process_stat(os.getpid())
    assert stat and is_running(stat)
    assert not is_running(type(stat)(stat.pid, "S", 1, 1, 1, stat.start_ticks + 1))


WRITER = """
import pathlib, sys
from lightning_smith.core.errors import run_script
run_script(lambda: pathlib.Path(sys.argv[1]).write_text("x"))
"""


@pytest.mark.parametrize(("below", "reason"), [("", "Is a directory"), ("writer.py/x", "Not a directory")])
def test_a_path_that_cannot_be_used_is_one_sentence(tmp_path: Path, below: str, reason: str) -> None:
    place = tmp_path / below
    done = python(write(tmp_path / "writer.py", WRITER), str(place))
    _, errors = done.communicate(timeout=20)
    assert done.returncode == 1
    assert errors.startswith(f"error: {place} cannot be used ({reason}): ") and errors.count("\n") == 1


LOCKER = """
import sys, time
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import stage_lock
def main():
    with stage_lock(sys.argv[1], "probe", wait_s=float(sys.argv[2])):
        print("held", flush=True)
        time.sleep(float(sys.argv[3]))
run_script(main)
"""


def test_stage_lock_refuses_a_second_run_and_names_the_first(tmp_path: Path) -> None:
    script = write(tmp_path / "locker.py", LOCKER)
    first = python(script, str(tmp_path), "0", "60")
    assert first.stdout and first.stdout.readline() == "held\n"
    second = python(script, str(tmp_path), "0.3", "0")
    _, errors = second.communicate(timeout=20)
    assert second.returncode == 1
    assert f"waiting for process {first.pid}" in errors and f"kill {first.pid}" in errors
    first.kill()
    first.wait()
    with stage_lock(tmp_path, "probe", wait_s=5):  # a killed holder leaves nothing to unlock
        pass


def test_stage_lock_waits_for_a_run_that_ends(tmp_path: Path) -> None:
    script = write(tmp_path / "locker.py", LOCKER)
    first = python(script, str(tmp_path), "0", "0.5")
    assert first.stdout and first.stdout.readline() == "held\n"
    with stage_lock(tmp_path, "probe", wait_s=10):
        first.wait(5)
    with stage_lock(tmp_path, "train", wait_s=0), stage_lock(tmp_path, "probe", wait_s=0):
        pass


WORKER = """
import os, sys, time
from lightning_smith.core.errors import run_script
from lightning_smith.core.process import exit_when_orphaned
def main():
    watch = exit_when_orphaned()
    try:
        print(os.getpid(), "watching" if watch else "alone", flush=True)
        time.sleep(60)
    finally:
        open(sys.argv[1], "w").write("cleaned up")
run_script(main)
"""

SNAKEMAKE = """
import subprocess, sys
child = subprocess.Popen(["bash", "-c", f"echo $$; '{sys.executable}' '{sys.argv[1]}' '{sys.argv[2]}'; true"])
child.wait()
"""


@pytest.mark.parametrize("victim", ["snakemake", "bash"])
def test_worker_ends_with_its_workflow(tmp_path: Path, victim: str) -> None:
    worker = write(tmp_path / "worker.py", WORKER)
    process = python(write(tmp_path / "snakemake", SNAKEMAKE), str(worker), str(tmp_path / "trace"))
    assert process.stdout
    bash = int(process.stdout.readline())
    pid, state = process.stdout.readline().split()
    assert state == "watching"
    os.kill(process.pid if victim == "snakemake" else bash, signal.SIGKILL)
    assert wait_for(lambda: gone(int(pid)), 4)
    assert (tmp_path / "trace").read_text() == "cleaned up"
    process.kill()
    process.wait()


def test_worker_without_workflow_watches_nothing(tmp_path: Path) -> None:
    process = python(write(tmp_path / "worker.py", WORKER), str(tmp_path / "trace"))
    assert process.stdout and process.stdout.readline().split()[1] == "alone"
    process.terminate()
    assert process.wait(5) == 143
    assert (tmp_path / "trace").read_text() == "cleaned up"


def test_ancestors_of_this_test_end_at_the_workflow() -> None:
    assert all(stat.running for stat in workflow_ancestors())
