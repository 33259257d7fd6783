"""Prints more than the harness keeps while it is graded."""

from attack import OUTPUT, Attack, code

ATTACK = Attack(
    (
        code(
            OUTPUT
            + "\nfor _ in range(300):\n    _os.write(_output, b'PASSED tests/test_core.py::x\\n' * 4000)"
        ),
    )
)
