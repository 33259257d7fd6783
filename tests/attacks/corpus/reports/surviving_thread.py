"""Prints results from a thread that goes on while pytest writes its report and ends."""

from attack import PRINT_PASSED, Attack, code

THREAD = """
import threading, time
def _again():
    while True:
        _claim()
        time.sleep(0.02)
threading.Thread(target=_again, daemon=True).start()
"""
ATTACK = Attack((code(PRINT_PASSED + THREAD),), either=True)
