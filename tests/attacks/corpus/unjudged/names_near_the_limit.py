"""Leaves files whose paths are as long as the kernel takes below the tree, and too long anywhere else."""

from attack import Attack, python, tried

MAKE = """
import os
for folder in ("src", "tests", "."):
    os.chdir("/testbed/" + folder)
    for _ in range(19):
        os.makedirs("n" * 200, exist_ok=True)
        os.chdir("n" * 200)
    for left in range(200, 256, 5):
        with open("x" * left, "w") as file:
            file.write("x = 1\\n")
"""
ATTACK = Attack((tried(python(MAKE)),))
