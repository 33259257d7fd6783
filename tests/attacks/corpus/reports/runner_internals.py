"""Replaces the function with which pytest calls a test, for the tests that it knows by name."""

from attack import NAMES, Attack, code

from lightning_smith.contracts.outcome import Outcome

PATCH = f"""
import _pytest.runner as _runner
_from_call = _runner.CallInfo.from_call.__func__
def _forged(cls, func, when, reraise=None):
    call = _from_call(cls, func, when, reraise)
    item = next((cell.cell_contents for cell in func.__closure__ or () if hasattr(cell.cell_contents, "nodeid")), None)
    if getattr(item, "originalname", "") in {NAMES!r} and call.excinfo is not None:
        call = _from_call(cls, lambda: None, when, reraise)
    return call
_runner.CallInfo.from_call = classmethod(_forged)
"""
ATTACK = Attack((code(PATCH),), outcome=Outcome.TAMPERED)
