"""Prints lines of megabytes that look like results with a million places at which the test's name could end."""

from attack import OUTPUT, Attack, code

PRINT = """
_lines = [
    b"",
    b"=========================== short test summary info ============================",
    b"FAILED tests/test_core.py::test_low" + b" - x" * 700_000,
    b"FAILED x::" + b" - x[" * 500_000,
    b"tests/test_core.py::" + b"PASSED FAILED " * 200_000,
    b"PASSED " * 300_000,
    b"",
]
import atexit as _atexit
_atexit.register(lambda: _os.write(_output, b"".join(line + bytes([10]) for line in _lines)))
"""
ATTACK = Attack((code(OUTPUT + PRINT),))
