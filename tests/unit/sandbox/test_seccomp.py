"""The filter of system calls, interpreted as the kernel does; tests/attacks tries it for real."""

import errno
import struct

import pytest

from lightning_smith.sandbox.seccomp import filter_program

ALLOW, ERROR = 0x7FFF0000, 0x00050000
X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003


def run(program: bytes, architecture: int, number: int, first: int = 0, third: int = 0) -> int:
    """What the kernel would be told of a call, by its seccomp_data: number, architecture, address, arguments."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, first, 0, third, 0, 0, 0)
    steps = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        code, if_true, if_false, constant = steps[at]
        at += 1
        if code == 0x20:
            value = struct.unpack_from("=I", data, constant)[0]
        elif code == 0x06:
            return constant
        else:
            holds = value == constant if code == 0x15 else value >= constant
            at += if_true if holds else if_false


@pytest.fixture(
    params=[("x86_64", X86_64, 41, 250), ("aarch64", AARCH64, 198, 219)], ids=lambda case: case[0]
)
def case(request: pytest.FixtureRequest) -> tuple[bytes, int, int, int]:
    """A program, its architecture, and its numbers of socket and keyctl."""
    machine, *numbers = request.param
    program = filter_program(machine)
    assert program is not None
    return program, *numbers


def test_keyrings_and_io_uring_are_refused(case: tuple[bytes, int, int, int]) -> None:
    program, architecture, socket, keyctl = case
    for number in (keyctl, keyctl - 1, keyctl - 2, 425, 426, 427, 0x40000000 + socket):
        assert run(program, architecture, number) == ERROR | errno.ENOSYS
    for number in (0, 1, 59, 101, keyctl + 1, keyctl - 3, 424, 428):
        assert run(program, architecture, number) == ALLOW


def test_one_family_of_sockets_is_refused(case: tuple[bytes, int, int, int]) -> None:
    program, architecture, socket, _ = case
    assert run(program, architecture, socket, 40) == ERROR | errno.EAFNOSUPPORT
    assert [run(program, architecture, socket, family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert run(program, architecture, socket + 1, 40) == ALLOW


@pytest.mark.parametrize(
    ("machine", "architecture", "madvise", "refused"),
    [
        ("x86_64", X86_64, 28, (27, 187, 221, 327, 440, 451)),
        ("aarch64", AARCH64, 233, (213, 223, 232, 286, 440, 451)),
    ],
)
def test_the_page_cache_is_nobodys_to_ask_or_to_empty(
    machine: str, architecture: int, madvise: int, refused: tuple[int, ...]
) -> None:
    program = filter_program(machine)
    assert program is not None
    for number in refused:
        assert run(program, architecture, number) == ERROR | errno.ENOSYS
    for advice in (20, 21):
        assert run(program, architecture, madvise, third=advice) == ERROR | errno.EINVAL
        assert run(program, architecture, madvise, first=advice) == ALLOW
        assert run(program, architecture, madvise + 1, third=advice) == ALLOW
    assert [run(program, architecture, madvise, first=40, third=advice) for advice in (0, 3, 4, 8, 22)] == [
        ALLOW
    ] * 5


def test_calls_of_another_architecture_are_refused(case: tuple[bytes, int, int, int]) -> None:
    assert run(case[0], I386, 1) == ERROR | errno.ENOSYS


def test_an_unknown_machine_has_none() -> None:
    assert filter_program("riscv64") is None
