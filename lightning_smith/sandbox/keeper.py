"""What ends the sandboxes of this process when it is killed.

    watch(pid)      # before the command of a sandbox may begin
    forget(pid)     # when its first process has ended

A signal at the parent's death comes too early or not at all: while a sandbox is being set up, it leaves a process that
waits for its parent for ever, and a process that asks for it after its parent has died never gets it. So a small shell
in a session of its own reads the pids from this process, and kills them when there is nobody left to read from.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading

NAME = "lightning-smith-keeper"
"""The last word of the shell's command line, by which `ps` shows what it is."""

_SCRIPT = """
declare -A pids
while read -r sign pid; do
    if [ "$sign" = + ]; then pids[$pid]=1; else unset "pids[$pid]"; fi
done
kill -KILL "${!pids[@]}"
"""

_lock = threading.Lock()
_keeper: subprocess.Popen[bytes] | None = None


def watch(pid: int) -> None:
    """Have a process killed when this one has ended, however that is; OSError if that cannot be promised."""
    _tell(f"+ {pid}\n")


def forget(pid: int) -> None:
    """Undo `watch`: the pid may soon be another process's."""
    _tell(f"- {pid}\n")


def _tell(line: str) -> None:
    global _keeper
    with _lock:
        if _keeper is None or _keeper.poll() is not None:
            _keeper = subprocess.Popen(
                ["bash", "-c", _SCRIPT, NAME],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        assert _keeper.stdin is not None
        os.write(_keeper.stdin.fileno(), line.encode())


@atexit.register
def _end() -> None:
    if _keeper is not None and _keeper.stdin is not None:
        _keeper.stdin.close()
        _keeper.wait()


def _leave_to_parent() -> None:
    """In a fork: the keeper is the parent's, and must notice the parent's end alone."""
    global _keeper, _lock
    if _keeper is not None and _keeper.stdin is not None:
        _keeper.stdin.close()
        _keeper.returncode = 0  # not a child of this process: nothing to wait for
    _keeper, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_leave_to_parent)
