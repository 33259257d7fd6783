"""Asks for the kernel keyrings of the session that started the harness."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                """
import ctypes, platform
number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
for ring in (-1, -2, -3, -4, -5):
    if ctypes.CDLL(None).syscall(number, 0, ring, 0) > 0:
        print("GAINED", ring)
"""
            )
        ),
    )
)
