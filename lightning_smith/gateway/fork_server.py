"""Rollouts as forks of a process that has imported the agent and never had the run's key: the fork server.

A fork has what its parent had in memory. So the controller, which needs the key, does not fork rollouts itself: before
it reads anything it starts the fork server, and asks it for every rollout. The variables of a rollout, its tokens among
them, are read by the fork alone; the fork server passes the pipe on unread, or later forks would find them in its
memory.

The fork server knows two requests, one at a time: to fork, and to say whether a fork has ended. When the controller has
ended, whatever ended it, the fork server kills the rollouts with all that is in their groups, and ends.

A rollout is to its agent what the stock controller's is, an interpreter of its own: arguments, `__main__`, signals,
logging, variables, and its end, which waits for threads, runs what `atexit` has, and gives the status that the agent
asked for. What the agent's import opened is shared by all rollouts. Two kinds of import a fork cannot stand in for,
those that read a variable of the rollout and those that start threads: such rollouts begin with a fresh interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import itertools
import json
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from agentlightning.controller.local_reconciler import _run_local_reconciler_worker

from lightning_smith.core.errors import exit_on_user_error
from lightning_smith.core.process import PR_SET_PDEATHSIG
from lightning_smith.gateway.key import close_standard_input

OUTPUT_KEPT_BYTES = 32_768
"""How much of what a rollout printed goes to the controller's log: its end."""

_MESSAGE_BYTES = 65_536

_EVERY_NAME = "*"
"""Stands for all variables: who lists an environment may read any of them."""

_READ_AT_START = ("PYTHON", "LD_", "LANG", "LC_", "TZ", "OMP_")
"""Beginnings of the names that interpreter and libraries read once, without anybody seeing it."""

_STOCK_WORKER = (
    "import sys; from agentlightning.controller.local_reconciler import _run_local_reconciler_worker; "
    "sys.exit(_run_local_reconciler_worker(sys.argv[1]))"
)
"""What the stock controller runs in the interpreter of a rollout."""

_libc = ctypes.CDLL(None, use_errno=True)


class ForkServer:
    """The controller's side of the fork server; make it in the main thread of a process that has done nothing yet.

    In a rollout the constructor does not return: it raises SystemExit, which nothing around it may catch, so that the
    interpreter ends as one that ran the agent alone. Methods end this process if the fork server cannot go on; what it
    printed is the reason.
    """

    def __init__(self) -> None:
        self._socket, fork_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            request = _live(fork_server)
            sys.exit(_run_rollout(request))
        fork_server.close()

    def prepare(self, agent_class: str, variables: Mapping[str, str]) -> str:
        """Import the agent (none if ""), under the variables that all rollouts have; what to know of it, for the log.

        What keeps it from being imported is printed.
        """
        with os.fdopen(os.memfd_create("variables"), "w+b", buffering=0) as file:
            file.write(json.dumps(dict(variables)).encode())
            file.seek(0)
            return self._ask({"prepare": agent_class, "cwd": str(Path.cwd())}, [file.fileno()])["note"]

    def fork(self, agent_class: str, variables: Mapping[str, str]) -> ForkedRollout:
        """Start a rollout that runs `agent_class().run()` with these variables and no others.

        Raise OSError if there can be no more processes.
        """
        output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives until the rollout's end is reported)
        reading, writing = os.pipe()
        try:
            answer = self._ask({"agent_class": agent_class}, [reading, output.fileno()])
        finally:
            os.close(reading)
        # A rollout that has died does not read them; its exit code says what happened.
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as pipe:
            json.dump(dict(variables), pipe)
        if "error" in answer:
            raise OSError(answer["error"])
        return ForkedRollout(answer["pid"], output, self)

    def exit_code(self, pid: int) -> int | None:
        """None while a rollout runs, else its exit status or minus the signal that ended it.

        Until this has given the status nobody else can have the pid; do not ask again afterwards.
        """
        return self._ask({"ended": pid})["code"]

    def _ask(self, request: dict[str, Any], files: list[int] | None = None) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(self._socket, [json.dumps(request).encode()], files or [])
        try:
            answer = self._socket.recv(_MESSAGE_BYTES)
        except ConnectionResetError:
            answer = b""
        if not answer:
            sys.exit(1)
        return json.loads(answer)


class ForkedRollout:
    """A rollout in a fork, with what the stock reconciler asks of a process: pid, returncode, wait().

    `output` is an unnamed file that holds what it printed.
    """

    def __init__(self, pid: int, output: IO[bytes], fork_server: ForkServer) -> None:
        self.pid = pid
        self.output = output
        self._fork_server = fork_server
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """None while it runs, else its exit status or minus the signal that ended it."""
        if self._returncode is None:
            self._returncode = self._fork_server.exit_code(self.pid)
        return self._returncode

    async def wait(self) -> int:
        """Wait for the end and return `returncode`."""
        while (code := self.returncode) is None:
            await asyncio.sleep(0.02)
        return code

    def take_output(self) -> str:
        """Return the end of what the rollout printed; closes the file."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - OUTPUT_KEPT_BYTES))
        text = self.output.read().decode("utf-8", errors="replace")
        self.output.close()
        return text.strip()


@dataclass
class _Request:
    """A rollout to run, in the fork that runs it."""

    agent_class: str
    variables: int
    output: int
    fork_server: _State


@dataclass
class _State:
    """What the fork server knows."""

    pid: int
    rollouts: set[int] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)
    """Those under which the agent was imported."""
    read: set[str] = field(default_factory=set)
    """Names of the ones that its import read."""
    written: dict[str, str | None] = field(default_factory=dict)
    """Those that its import set, None if it removed them."""
    threads: bool = False
    """Whether it started threads."""

    def stands_for(self, variables: dict[str, str]) -> bool:
        """Return whether the agent, imported under these variables, would be what it is here."""
        if self.threads or _EVERY_NAME in self.read:
            return False
        names = self.read | {
            name for name in {*self.variables, *variables} if name.startswith(_READ_AT_START)
        }
        return all(self.variables.get(name) == variables.get(name) for name in names)


def _live(controller: socket.socket) -> _Request:
    """Be the fork server until the controller ends; returns only in rollouts."""
    state = _State(os.getpid())
    with _ending(state):
        close_standard_input()  # the key will come through it
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor != controller.fileno():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        for number in (signal.SIGTERM, signal.SIGINT):  # the controller ends its rollouts first
            signal.signal(number, signal.SIG_IGN)
        atexit.register(_close_files)  # before the agent's import registers anything: it is the last to run
    while True:
        answer: dict[str, Any] = {}
        with _ending(state):
            data, files, _, _ = socket.recv_fds(controller, _MESSAGE_BYTES, 2)
            if not data:
                raise SystemExit(0)
            request = json.loads(data)
            if "prepare" in request:
                answer = {"note": _prepare(state, request["prepare"], request["cwd"], files.pop())}
            elif "ended" in request:
                answer = {"code": _exit_code(request["ended"])}
                if answer["code"] is not None:
                    state.rollouts.discard(request["ended"])
        if "agent_class" in request:
            try:
                pid = os.fork()
            except OSError as error:
                answer = {"error": str(error)}
            else:
                if pid == 0:
                    controller.close()
                    variables, output = files
                    return _Request(request["agent_class"], variables, output, state)
                state.rollouts.add(pid)
                answer = {"pid": pid}
        with _ending(state):
            for descriptor in files:
                os.close(descriptor)
            controller.send(json.dumps(answer).encode())


@contextlib.contextmanager
def _ending(state: _State) -> Iterator[None]:
    """What the fork server does; whatever is raised ends it and its rollouts. Rollouts are never in here."""
    code = 1
    try:
        yield
        return
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1  # a reason is printed
    except ConnectionError:
        pass  # nobody is left who wants to know it
    except BaseException:
        traceback.print_exc()
    for pid in state.rollouts:
        _kill_rollout(pid)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _prepare(state: _State, agent_class: str, cwd: str, variables: int) -> str:
    """Import the agent as its rollouts would; says if they cannot be forks of this process."""
    with os.fdopen(variables) as file:
        state.variables = json.load(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(state.variables)
    _be_the_program(agent_class)
    if agent_class:
        threads = threading.active_count()
        with exit_on_user_error(), _recorded_uses() as (state.read, written):
            importlib.import_module(agent_class.rpartition(":" if ":" in agent_class else ".")[0])
        state.written = {name: os.environ.get(name) for name in written}
        state.threads = threading.active_count() > threads
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # forks share these pages: the collector must not touch them
    if state.threads:
        return "it starts threads"
    unset = sorted(state.read - state.variables.keys() - {_EVERY_NAME})
    if _EVERY_NAME in state.read:
        return "it lists the environment"
    return f"it reads {', '.join(unset)}" if unset else ""


def _be_the_program(agent_class: str) -> None:
    """Have arguments and `__main__` as the stock worker has them."""
    sys.argv = ["-c", agent_class]
    sys.modules["__main__"] = ModuleType("__main__")


@contextlib.contextmanager
def _recorded_uses() -> Iterator[tuple[set[str], set[str]]]:
    """Names of the variables that are read meanwhile, set or not (`_EVERY_NAME` if they are listed), and written."""
    kind, read, written = type(os.environ), set[str](), set[str]()
    usual = {name: getattr(kind, name) for name in ("__getitem__", "__iter__", "__setitem__", "__delitem__")}

    def recording(method: str, note: Callable[..., None]) -> Callable[..., Any]:
        def record(self: Any, *arguments: Any) -> Any:
            note(*arguments)
            return usual[method](self, *arguments)

        return record

    notes: dict[str, Callable[..., None]] = {
        "__getitem__": lambda key: read.add(os.fsdecode(key)),  # environb has the same class, and bytes
        "__iter__": lambda: read.add(_EVERY_NAME),
        "__setitem__": lambda key, value: written.add(os.fsdecode(key)),
        "__delitem__": lambda key: written.add(os.fsdecode(key)),
    }
    for name, note in notes.items():
        setattr(kind, name, recording(name, note))
    try:
        yield read, written
    finally:
        for name, method in usual.items():
            setattr(kind, name, method)


def _kill_rollout(pid: int) -> None:
    """Kill a rollout that was not reaped yet, and its group, which it leads unless it has only just been forked."""
    _kill(os.killpg, pid)
    _kill(os.kill, pid)


def _kill(kill: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        kill(pid, signal.SIGKILL)


def _exit_code(pid: int) -> int | None:
    if not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        return None
    # What a killed agent left in its group goes before the reaping, while nobody else can have the pid.
    _kill(os.killpg, pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run_rollout(request: _Request) -> int:
    """Run the agent in this process, a fork of the fork server; returns its exit status, or raises what ends it."""
    os.setsid()
    _die_with(request.fork_server.pid)
    os.dup2(request.output, 1)
    os.dup2(request.output, 2)
    os.close(request.output)
    with os.fdopen(request.variables) as pipe:
        variables = json.load(pipe)
    if not request.fork_server.stands_for(variables):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        command = [sys.executable, "-c", _STOCK_WORKER, request.agent_class]
        os.execve(sys.executable, command, variables)
    for number, usual in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:  # not one that the agent's import has set
            signal.signal(number, usual)
    os.environ.clear()
    os.environ.update(variables)
    for name, value in request.fork_server.written.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _be_the_program(request.agent_class)
    if numpy := sys.modules.get("numpy"):  # Python's own generator is seeded anew in every fork
        numpy.random.seed(random.SystemRandom().getrandbits(32))
    return _run_local_reconciler_worker(request.agent_class)


def _close_files() -> None:
    """Close what a rollout has left open, what writes into another file first.

    The interpreter's end collects no module of before the freezing, nor the files that are only open there. Handlers of
    logging come before their files: what they have kept back is written now.
    """
    logging.shutdown()
    c_buffers = (io.BufferedWriter, io.BufferedReader, io.BufferedRandom, io.BufferedRWPair)
    layers: list[list[Any]] = [[], [], [], []]
    for found in gc.get_objects():  # none of before the freezing
        kind = type(found)
        if issubclass(kind, io.TextIOBase):
            layers[0].append(found)
        elif issubclass(kind, io.BufferedIOBase):
            layers[2 if kind in c_buffers else 1].append(found)
        elif issubclass(kind, io.IOBase):
            layers[3].append(found)
    for file in itertools.chain(*layers):
        with contextlib.suppress(OSError, ValueError):
            file.close()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call, so no signal will come
        os._exit(1)
