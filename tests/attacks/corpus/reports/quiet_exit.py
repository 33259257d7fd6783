"""Ends the process with success before any test ran, and says nothing."""

from attack import Attack, code

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack((code("import os; os._exit(0)"),), outcome=Outcome.TAMPERED)
