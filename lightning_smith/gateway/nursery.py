"""Rollouts as forks of a process that has imported the agent and never had the run's key: the nursery.

A fork has what its parent had in memory. So the controller, which needs the key, does not fork rollouts itself: before
it reads the key it starts the nursery, and asks it for every rollout. The variables of a rollout, its tokens among
them, are read by the fork alone; the nursery passes the pipe on unread, or later forks would find them in its memory.

The nursery knows two requests, one at a time: to fork, and to say whether a fork has ended. When the controller has
ended, whatever ended it, the nursery kills the rollouts with all that is in their groups, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

from agentlightning.controller.local_reconciler import _run_local_reconciler_worker

from lightning_smith.errors import exit_on_user_error
from lightning_smith.gateway.key import close_standard_input
from lightning_smith.process import PR_SET_PDEATHSIG, minimal_environment

OUTPUT_KEPT_BYTES = 32_768
"""How much of what a rollout printed goes to the controller's log: its end."""

_MESSAGE_BYTES = 65_536

_libc = ctypes.CDLL(None, use_errno=True)


class Nursery:
    """The controller's side of the nursery; make it in the main thread of a process without other ones.

    Ends this process if the nursery cannot start or has died; what it printed is the reason.
    """

    def __init__(self, module: str) -> None:
        self._socket, nursery = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            _serve(nursery, module)
        nursery.close()
        self._receive()

    def fork(self, agent_class: str, environment: dict[str, str]) -> ForkedRollout:
        """Start a rollout that runs `agent_class().run()`; raises OSError if there can be no more processes."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives until the rollout's end is reported)
        reading, writing = os.pipe()
        try:
            answer = self._ask({"agent_class": agent_class}, [reading, output.fileno()])
        finally:
            os.close(reading)
        # A rollout that has died does not read them; its exit code says what happened.
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as variables:
            json.dump(environment, variables)
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
        return self._receive()

    def _receive(self) -> dict[str, Any]:
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

    def __init__(self, pid: int, output: IO[bytes], nursery: Nursery) -> None:
        self.pid = pid
        self.output = output
        self._nursery = nursery
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """None while it runs, else its exit status or minus the signal that ended it."""
        if self._returncode is None:
            self._returncode = self._nursery.exit_code(self.pid)
        return self._returncode

    async def wait(self) -> int:
        """Wait for the end and return `returncode`."""
        while (code := self.returncode) is None:
            await asyncio.sleep(0.02)
        return code

    def take_output(self) -> str:
        """The end of what the rollout printed; closes the file."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - OUTPUT_KEPT_BYTES))
        text = self.output.read().decode("utf-8", errors="replace")
        self.output.close()
        return text.strip()


def _serve(controller: socket.socket, module: str) -> NoReturn:
    """Be the nursery: import the agent once, then answer requests until the controller ends."""
    code = 1
    rollouts: set[int] = set()
    try:
        close_standard_input()  # the key will come through it
        for number in (signal.SIGTERM, signal.SIGINT):  # the controller ends its rollouts first
            signal.signal(number, signal.SIG_IGN)
        with exit_on_user_error():
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # forks share these pages: the collector must not touch them
        answer: dict[str, Any] = {}
        while True:
            controller.send(json.dumps(answer).encode())
            data, files, _, _ = socket.recv_fds(controller, _MESSAGE_BYTES, 2)
            if not data:
                break
            request = json.loads(data)
            if "ended" in request:
                answer = {"code": _exit_code(request["ended"])}
                if answer["code"] is not None:
                    rollouts.discard(request["ended"])
            else:
                answer = _fork(request, files)
                rollouts |= {answer["pid"]} if "pid" in answer else set()
        code = 0
    except (SystemExit, ConnectionError):
        pass  # the reason is printed, or nobody is left who wants to know it
    except BaseException:
        traceback.print_exc()
    finally:
        for pid in rollouts:
            _kill_rollout(pid)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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


def _fork(request: dict[str, Any], files: list[int]) -> dict[str, Any]:
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            variables, output = files
            _run_rollout(request["agent_class"], variables, output, parent)
        return {"pid": pid}
    except OSError as error:
        return {"error": str(error)}
    finally:
        for file in files:
            os.close(file)


def _run_rollout(agent_class: str, variables: int, output: int, parent: int) -> NoReturn:
    code = 1
    try:
        # Objects of the parent must never be collected here: their files are closed below, and closing them
        # again would hit files that the agent opened under the same numbers.
        gc.freeze()
        os.setsid()
        _die_with(parent)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        with os.fdopen(os.dup(variables)) as pipe:
            environment = json.load(pipe)
        os.closerange(3, max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 1)
        stage = {name: value for name, value in os.environ.items() if name.startswith("LS_")}
        inherited = minimal_environment(**stage)
        os.environ.clear()
        os.environ.update(inherited | environment)
        code = _run_local_reconciler_worker(agent_class)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call, so no signal will come
        os._exit(1)
