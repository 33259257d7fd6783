"""Prints a report of passed tests when the interpreter ends, below the real one."""

from attack import PRINT_PASSED, Attack, code

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack((code(PRINT_PASSED + "import atexit; atexit.register(_claim)"),), outcome=Outcome.TAMPERED)
