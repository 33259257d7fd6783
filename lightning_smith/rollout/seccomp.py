"""A filter of system calls for what namespaces leave open: kernel keyrings, and sockets to the virtual machine's host.

A process keeps the keyrings of the session that started it, whatever its namespaces. Sockets of the family vsock
reach the machine's hypervisor, with or without a network. io_uring makes sockets that no filter sees, and calls of
other architectures have other numbers, so neither is there either.

`filter_program()` is a classic BPF program (seccomp(2)), as `bwrap --seccomp` reads it.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_AF_VSOCK = 40
_X32_BIT = 0x40000000


@dataclass(frozen=True)
class _Architecture:
    """AUDIT_ARCH_* of a machine, and the numbers of its system calls."""

    audit: int
    socket: int
    refused: tuple[int, ...]
    """add_key, request_key, keyctl, io_uring_setup, io_uring_enter, io_uring_register."""


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 41, (248, 249, 250, 425, 426, 427)),
    "aarch64": _Architecture(0xC00000B7, 198, (217, 218, 219, 425, 426, 427)),
}


def filter_program(machine: str = platform.machine()) -> bytes | None:
    """The program for a machine as `uname -m` names it; None for one whose numbers are not listed here."""
    known = _ARCHITECTURES.get(machine)
    if known is None:
        return None
    refuse, allow = ("return", _ERROR | errno.ENOSYS), ("return", _ALLOW)
    checks = [("load", _ARCHITECTURE_AT), ("unless", known.audit, refuse), ("load", _NUMBER_AT)]
    checks += [("above", _X32_BIT, refuse)]
    checks += [("if", number, refuse) for number in known.refused]
    checks += [("unless", known.socket, allow), ("load", _FIRST_ARGUMENT_AT)]
    checks += [("if", _AF_VSOCK, ("return", _ERROR | errno.EAFNOSUPPORT)), allow]
    return b"".join(map(_assemble, checks))


def _assemble(check: tuple) -> bytes:
    """One step as instructions; a condition is a jump over the return that follows it, or onto it."""
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
    raise AssertionError(check)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
