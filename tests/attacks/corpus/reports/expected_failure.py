"""Marks the tests that it knows by name as expected to fail, while they are collected."""

from attack import NAMES, Attack, code

from lightning_smith.contracts.outcome import Outcome

MARK = f"""
import pytest as _pytest, _pytest.python as _p
_init = _p.Function.__init__
def _marked(self, *arguments, **options):
    _init(self, *arguments, **options)
    if self.originalname in {NAMES[:2]!r}:
        self.add_marker(_pytest.mark.xfail)
_p.Function.__init__ = _marked
"""
ATTACK = Attack((code(MARK),), outcome=Outcome.TAMPERED)
