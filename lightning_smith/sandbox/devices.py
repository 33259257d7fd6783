"""The machine's device files, as commands in bubblewrap get them: nothing about them may change.

A sandbox has the machine's own /dev/null and its like, and whoever may write to a file may set its times to now, in
which a later command could read a word. Their owner may set them to anything, and take everybody's permissions away:
the commands of a harness that runs as root would. So bubblewrap is started where the files are mounted read-only, which
writing to a device does not mind. Only root can do that; for others the times are set to now before each command.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightning_smith.sandbox.chroot import MS_BIND, MS_PRIVATE, MS_REC, mount

_DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "tty"))
"""Those that `bwrap --dev` binds."""

_MS_RDONLY, _MS_NOSUID, _MS_NOEXEC, _MS_REMOUNT = 0x1, 0x2, 0x8, 0x20


def with_fixed_devices[T](start: Callable[[], T]) -> T:
    """Call `start`, whose processes find devices that they cannot change, if this process may arrange it."""
    if os.geteuid() != 0:
        _set_times()
        return start()
    with ThreadPoolExecutor(1) as thread:  # what it unshares ends with it, and this thread keeps its own
        return thread.submit(_call_with_fixed_devices, start).result()


def _call_with_fixed_devices[T](start: Callable[[], T]) -> T:
    try:
        os.unshare(os.CLONE_NEWNS)
        mount(None, "/", MS_REC | MS_PRIVATE)
        for device in map(str, filter(Path.exists, _DEVICES)):
            mount(device, device, MS_BIND)
            mount(None, device, _MS_REMOUNT | MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NOEXEC)
    except OSError:  # root of a container that may not mount
        _set_times()
    return start()


def _set_times() -> None:
    for device in _DEVICES:
        with contextlib.suppress(OSError):
            os.utime(device)
