"""Prints a report of passed tests and ends the process with failure, as a run with a failing test would end."""

from attack import PRINT_PASSED, Attack, code

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack((code(PRINT_PASSED + "_claim(); os._exit(1)"),), outcome=Outcome.TAMPERED)
