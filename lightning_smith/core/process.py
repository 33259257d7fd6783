"""Processes that never outlive the workflow: supervised services, stage locks and the orphan watch.

Linux only: parent-death signals, `/proc` and `flock` do the work, so nothing here depends on pid files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.errors import UserError

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that a process gets when the thread that created it ends."""

POLL_S = 0.02

# Runs in the child before the service: asks the kernel to kill it with its parent, then becomes the
# service. A helper process instead of preexec_fn, which may deadlock in a process that has threads. The
# parent's pid is compared after the call, because a parent that died before it sends no signal any more.
_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process ended before the service started")
try:
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
except OSError as error:
    sys.exit(f"cannot start {sys.argv[2]}: {error}")
"""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What `/proc/PID/stat` says; `start_ticks` tells a process from a later one with its pid."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int

    @property
    def running(self) -> bool:
        """False for a zombie: it has ended and only waits to be reaped."""
        return self.state not in "ZX"


def process_stat(pid: int) -> ProcessStat | None:
    """State of a process, None if there is none with this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in brackets and may hold blanks and brackets itself.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def is_running(process: ProcessStat) -> bool:
    """Return whether that very process still runs (not a zombie, not another process with a recycled pid)."""
    now = process_stat(process.pid)
    return now is not None and now.running and now.start_ticks == process.start_ticks


def session_members(session: int) -> list[int]:
    """Pids of the running processes of a session, whatever their process group."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = (process_stat(pid) for pid in pids)
    return sorted(stat.pid for stat in stats if stat and stat.running and stat.session == session)


def minimal_environment(**extra: str) -> dict[str, str]:
    """Environment of a service: what any program needs, where the Docker daemon is, and `extra`; keys, proxies and
    Python settings of the user stay behind, so that no secret leaks and requests to 127.0.0.1 are not sent to a
    proxy."""
    kept = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
    kept += ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    threads = {name: value for name, value in os.environ.items() if name.startswith("OMP_")}
    return {**environment, **threads, "PYTHONUNBUFFERED": "1", **extra}


class Service:
    """A supervised child in a session of its own, which the kernel kills when this process dies.

    Start it from the main thread: the parent-death signal belongs to the thread that creates the child and
    would fire when that thread ends. `secret` is one line for its standard input, which is empty otherwise.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        secret: str | None = None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{name} must be started from the main thread")
        self.name, self.log, self.command = name, log, list(command)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"--- {name} started {started}: {shlex.join(self.command)}\n".encode())
            file.flush()
            self._log_start = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL if secret is None else subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=minimal_environment() if env is None else env,
                cwd=cwd,
                start_new_session=True,
            )
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(f"{secret}\n".encode())

    @property
    def pid(self) -> int:
        """Process id, which is the id of the service's session and process group as well."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; its exit status, or minus the signal that ended it.

        The child is not reaped here: as a zombie it keeps its pid, so `stop` cannot hit a stranger.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def log_tail(self, lines: int = 12) -> str:
        """Return the last lines that this start of the service wrote to its log."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - 16_384))
            text = file.read().decode("utf-8", errors="replace")
        return "\n".join(text.strip().split("\n")[-lines:])

    def check(self) -> None:
        """Raise UserError if the service has ended, with the sentence or the lines that its log ends with."""
        code = self.exit_code()
        if code is not None:
            last = self.log_tail(lines=1)
            if last.startswith("error: "):
                raise UserError(f"{last.removeprefix('error: ')} (from the {self.name}, {self.log})")
            raise UserError(
                f"the {self.name} ended {describe_exit(code)}; {self.log} ends with:\n{self.log_tail()}"
            )

    def stop(self, grace_s: float = 5.0) -> None:
        """End the service: TERM to its group, after `grace_s` seconds KILL to its session, verified.

        Raise UserError naming the pids if something survives a KILL (a process stuck in the kernel).
        """
        if self._process.returncode is not None:
            return
        _signal_group(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.exit_code() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        deadline = time.monotonic() + 10
        while left := session_members(self.pid):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise UserError(
                    f"process {left[0]} of the {self.name} survives SIGKILL: see `ps -o stat,wchan {left[0]}`"
                )
            time.sleep(POLL_S)
        self._process.wait()


def pass_signals_on() -> None:
    """From now on have INT or TERM to this process alone end its jobs too, as Ctrl-C in a terminal does.

    A terminal interrupts the whole process group; `kill PID` reaches one process, which would then wait for the others.
    A second signal ends the wait for them.
    """

    def handle(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        _interrupt_jobs()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _interrupt_jobs() -> None:
    """Send INT to this process's descendants in its group, or TERM to those that a shell made ignore INT."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = {stat.pid: stat for stat in map(process_stat, pids) if stat and stat.running}
    group = os.getpgrp()
    for stat in stats.values():
        ancestor = stat
        while ancestor is not None and ancestor.pid != os.getpid():
            ancestor = stats.get(ancestor.parent)
        if ancestor is None or stat is ancestor or stat.group != group:
            continue
        number = signal.SIGINT
        if _ignores(stat.pid, signal.SIGINT):
            if _program(stat.pid) in _WAIT_FOR_OTHERS:
                continue
            number = signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            os.kill(stat.pid, number)


_WAIT_FOR_OTHERS = ("bash", "sh", "tee")
"""Programs of a rule's command line that end by themselves with its script, and lose its last words otherwise."""


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Return whether a process ignores a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    ignored = next((line for line in status.splitlines() if line.startswith("SigIgn:")), "SigIgn: 0")
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


def describe_exit(code: int) -> str:
    """`with exit code 1`, or `by signal SIGKILL` for the negative codes of `Service.exit_code`."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on.

    It lies below the kernel's ephemeral range, so no outgoing connection can take it before the service
    binds it.
    """
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        port = random.SystemRandom().randrange(min(10_240, first_ephemeral - 1_000), first_ephemeral)
        if port_is_free(port):
            return port
    raise UserError("no free TCP port on 127.0.0.1: see `ss -ltn` for what listens there")


def port_is_free(port: int) -> bool:
    """Return whether a service could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def workflow_ancestors() -> list[ProcessStat]:
    """Return the processes that must live for this one to be wanted, nearest first.

    A rule's script runs as snakemake -> bash -> (uv run) -> python: all ancestors up to the topmost
    snakemake. Started by hand it has none, but for the `uv run` right above it.
    """
    chain: list[ProcessStat] = []
    wanted = 0
    stat = process_stat(os.getppid())
    while stat is not None and stat.pid > 1:
        chain.append(stat)
        program = _program(stat.pid)
        if program == "snakemake" or (program == "uv" and wanted == len(chain) - 1):
            wanted = len(chain)
        stat = process_stat(stat.parent)
    return chain[:wanted]


def _program(pid: int) -> str:
    """Name of the program or Python script that a process runs: `snakemake`, `uv`, `bash`, ..."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    names = [Path(word).name for word in words]
    if names[0].startswith("python") and len(names) > 1:
        return names[2] if names[1] == "-m" and len(names) > 2 else names[1]
    return names[0]


def exit_when_orphaned(poll_s: float = 0.5, grace_s: float = 30.0) -> threading.Thread | None:
    """End this process when the workflow that started it has died, kill -9 included.

    A daemon thread looks at `workflow_ancestors()` every `poll_s` seconds and sends SIGTERM to this
    process, whose handler (see `run_script`) cleans up; SIGKILL follows after `grace_s` seconds. Returns
    None if there is nothing to watch.
    """
    ancestors = workflow_ancestors()
    if not ancestors:
        return None

    def watch() -> None:
        while all(is_running(ancestor) for ancestor in ancestors):
            time.sleep(poll_s)
        print("the workflow that started this process has ended: stopping", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=watch, name="orphan-watch", daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def stage_lock(folder: Path | str, name: str, wait_s: float = 30.0) -> Iterator[None]:
    """Hold a folder for one run of a stage.

    Waits up to `wait_s` seconds, saying for whom, because an interrupted run may still be stopping its
    services. Raise UserError with the holder's pid after that. The kernel releases the lock with the
    process.
    """
    path = Path(folder) / f".{name}.lock"
    handle = open_lock(path)
    try:
        _acquire(handle, path, name, wait_s)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path, name: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        if try_lock(handle):
            return
        holder = lock_holder(handle)
        if time.monotonic() > deadline:
            raise UserError(
                f"process {holder} runs {name} in {path.parent} already: wait for it, or end it with "
                f"`kill {holder}`"
            )
        if not told:
            told = True
            text = f"waiting for process {holder}, which runs {name} in {path.parent}"
            print(text, file=sys.stderr, flush=True)
        time.sleep(0.1)


def open_lock(path: Path) -> int:
    """Return a descriptor of a lock file, made if absent; closing it, or the death of the process, frees the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def try_lock(handle: int) -> bool:
    """Take the lock and write who holds it; False if another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps({"pid": os.getpid()}).encode(), 0)
    return True


def lock_holder(handle: int) -> int | str:
    """Pid written by the holder of a lock; there is a moment in which it has not written it yet."""
    try:
        return int(json.loads(os.pread(handle, 200, 0))["pid"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
