"""Prints a report of passed tests and ends the process with success while the package is imported."""

from attack import PRINT_PASSED, Attack, code

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack((code(PRINT_PASSED + "_claim(); os._exit(0)"),), outcome=Outcome.TAMPERED)
