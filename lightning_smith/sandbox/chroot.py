"""Out of a chroot: the kernel lets nobody in one make a user namespace, and without that there is no sandbox.

Root may give a process a mount namespace of its own whose root is the folder that the chroot shows. It sees the same
files as before, and so do its children; nothing changes for other processes.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def leave_chroot() -> None:
    """Make what "/" is now the root of a mount namespace of this thread; OSError if that is not allowed."""
    where = Path.cwd()
    inside = tempfile.mkdtemp(prefix="lightning-smith-root-")
    try:
        os.unshare(os.CLONE_NEWNS)
        shown = os.open("/", os.O_PATH | os.O_DIRECTORY)
        own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        try:
            os.setns(own, os.CLONE_NEWNS)  # its root is now that of the whole machine
            mount(None, "/", MS_REC | MS_PRIVATE)
            os.fchdir(shown)
            relative = inside.removeprefix("/")
            mount(".", relative, MS_BIND | MS_REC)
            os.chdir(relative)
        finally:
            os.close(own)
            os.close(shown)
        # The old root lands on top of the new one and is taken off, see pivot_root(2).
        _call("pivot_root", b".", b".")
        _call("umount2", b".", _MNT_DETACH)
        os.chdir(where)
    finally:
        Path(inside).rmdir()


def mount(source: str | None, target: str, flags: int) -> None:
    """Mount a folder or file elsewhere, or change how one is mounted, as mount(2) does; OSError if that is refused."""
    encoded = None if source is None else os.fsencode(source)
    _call("mount", encoded, os.fsencode(target), None, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
