"""A filter of system calls for what namespaces leave open: keyrings, the page cache, and sockets to the machine's host.

A process keeps the keyrings of the session that started it, whatever its namespaces. Sockets of the family vsock
reach the machine's hypervisor, with or without a network. io_uring makes sockets that no filter sees, and calls of
other architectures have other numbers, so neither is there either.

Which pages of the system's files are in memory is the same for all sandboxes. To bring them there it takes a read, and
a clock can tell; but no call may ask which ones are there, nor take them out again.

`filter_program()` is a classic BPF program (seccomp(2)), as `bwrap --seccomp` reads it.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _THIRD_ARGUMENT_AT = 0, 4, 16, 32
_INSTRUCTION_BYTES = 8
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_AF_VSOCK = 40
_X32_BIT = 0x40000000
_MADV_COLD, _MADV_PAGEOUT = 20, 21


@dataclass(frozen=True)
class _Architecture:
    """AUDIT_ARCH_* of a machine, and the numbers of its system calls."""

    audit: int
    socket: int
    madvise: int
    refused: tuple[int, ...]
    """add_key, request_key, keyctl, io_uring_setup, io_uring_enter, io_uring_register; of the page cache: mincore,
    fadvise64, readahead, cachestat, process_madvise, and preadv2, which can be told not to wait for the disk."""


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 41, 28, (248, 249, 250, 425, 426, 427, 27, 221, 187, 451, 440, 327)),
    "aarch64": _Architecture(
        0xC00000B7, 198, 233, (217, 218, 219, 425, 426, 427, 232, 223, 213, 451, 440, 286)
    ),
}


def filter_program(machine: str = platform.machine()) -> bytes | None:
    """Return the program for a machine as `uname -m` names it; None for one whose numbers are not listed here."""
    known = _ARCHITECTURES.get(machine)
    if known is None:
        return None
    refuse, allow = ("return", _ERROR | errno.ENOSYS), ("return", _ALLOW)
    checks = [("load", _ARCHITECTURE_AT), ("unless", known.audit, refuse), ("load", _NUMBER_AT)]
    checks += [("above", _X32_BIT, refuse)]
    checks += [("if", number, refuse) for number in known.refused]
    evicting = [("if", advice, ("return", _ERROR | errno.EINVAL)) for advice in (_MADV_COLD, _MADV_PAGEOUT)]
    checks += [("when", known.madvise, [("load", _THIRD_ARGUMENT_AT), *evicting, allow])]
    checks += [("unless", known.socket, allow), ("load", _FIRST_ARGUMENT_AT)]
    checks += [("if", _AF_VSOCK, ("return", _ERROR | errno.EAFNOSUPPORT)), allow]
    return b"".join(map(_assemble, checks))


def _assemble(check: tuple) -> bytes:
    """One step as instructions; a condition is a jump over the return or the steps that follow it, or onto them."""
    match check:
        case ("load", offset):
            return _instruction(_LOAD, 0, 0, offset)
        case ("return", value):
            return _instruction(_RETURN, 0, 0, value)
        case ("if", value, then):
            return _instruction(_EQUAL, 0, 1, value) + _assemble(then)
        case ("above", value, then):
            return _instruction(_ABOVE, 0, 1, value) + _assemble(then)
        case ("unless", value, then):
            return _instruction(_EQUAL, 1, 0, value) + _assemble(then)
        case ("when", value, steps):
            code = b"".join(map(_assemble, steps))
            return _instruction(_EQUAL, 0, len(code) // _INSTRUCTION_BYTES, value) + code
    raise AssertionError(check)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
