"""Leaves more files than a patch may have, in one folder and in many."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                """
import os
for folder in range(60):
    os.mkdir(f"d{folder}")
    for number in range(500):
        os.close(os.open(f"d{folder}/{number}", os.O_CREAT))
"""
            )
        ),
    )
)
