"""Talks to the virtual machine's host over a vsock socket, which no network namespace holds back."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                """
import ctypes, socket
try:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    print("GAINED")
except OSError:
    pass
if ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0:
    print("GAINED io_uring")
"""
            )
        ),
    )
)
