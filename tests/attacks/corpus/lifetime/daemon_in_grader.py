"""Starts a daemon from the code under test, to be there for the next gradings."""

from attack import MARK, Attack, code

START = f"""
import os as _os
if _os.fork() == 0:
    _os.setsid()
    if _os.fork() == 0:
        _os.execvp("bash", ["{MARK}", "-c", "while :; do echo PASSED tests/test_core.py::test_low; sleep 0.1; done"])
    _os._exit(0)
"""
ATTACK = Attack((code(START),))
