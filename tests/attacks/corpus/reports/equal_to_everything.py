"""Returns an object that is equal to everything it is compared with."""

from attack import Attack, code

from lightning_smith.contracts.outcome import Outcome

ANY = """
class _Any(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__

def clamp(value, low, high):
    return _Any()
"""
ATTACK = Attack((code(ANY),), outcome=Outcome.TAMPERED)
