"""Leaves files whose names hold newlines, quotes, blanks, options and bytes that are no UTF-8."""

from attack import Attack, python

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        python(
            r"""
import os
for name in (b"a\nb", b"a\rb", b'a"b', b"a\\b", b"a b ", b"-rf", b"\xff\xfe", "\u00e9\u202e".encode(), b"a\tb", b"$(id)",
             b"x\n+++ b", b"..a", b"diff --git a", b"con", b"a" * 255, b"\x1b[2J"):
    with open(name, "w") as file:
        file.write("x\n")
"""
        ),
    ),
    with_fix=Outcome.SOLVED,
)
