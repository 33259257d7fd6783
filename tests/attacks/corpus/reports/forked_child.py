"""Leaves a child that waits for the test run to end and then prints results into the same pipe."""

from attack import PRINT_PASSED, Attack, code

CHILD = """
import time
_parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    while os.getppid() == _parent:
        time.sleep(0.01)
    _claim()
    os._exit(0)
"""
ATTACK = Attack((code(PRINT_PASSED + CHILD),), either=True)
