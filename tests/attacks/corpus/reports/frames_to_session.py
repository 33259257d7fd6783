"""Walks up the stack to pytest's session and takes the assertions out of the tests that it knows by name."""

from attack import NAMES, Attack, code

from lightning_smith.contracts.outcome import Outcome

WALK = f"""
import sys as _sys
def _forge():
    frame = _sys._getframe()
    while frame is not None:
        session = frame.f_locals.get("session") or getattr(frame.f_locals.get("self"), "session", None)
        for item in getattr(session, "items", ()):
            if getattr(item, "originalname", None) in {NAMES!r}:
                item.runtest = lambda: None
        frame = frame.f_back
class _Any:
    __eq__ = lambda self, other: True
def clamp(*arguments):
    _forge()
    return _Any()  # for the test that runs already
"""
ATTACK = Attack((code(WALK),), outcome=Outcome.TAMPERED)
