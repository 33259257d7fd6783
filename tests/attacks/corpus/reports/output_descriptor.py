"""Writes results into every open descriptor and terminal, by way of /proc/self/fd."""

from attack import PRINT_PASSED, Attack, code

from lightning_smith.contracts.outcome import Outcome

WRITE = """
for _name in (*os.listdir("/proc/self/fd"), "/dev/tty", "/dev/stdout", "/proc/1/fd/1"):
    try:
        with open(os.path.join("/proc/self/fd", _name), "a") as _file:
            _file.write("\\nPASSED tests/test_core.py::test_low\\ntests/test_core.py::test_low PASSED [100%]\\n")
    except OSError:
        pass
import atexit
atexit.register(_claim)
"""
ATTACK = Attack((code(PRINT_PASSED + WRITE),), outcome=Outcome.TAMPERED)
