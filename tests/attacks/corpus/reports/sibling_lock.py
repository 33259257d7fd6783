"""Locks the interpreter's own file and forges results if nobody has it, so that of two runs at once one is honest."""

from attack import FORGE_BELOW, Attack, code

from lightning_smith.contracts.outcome import Outcome

LOCK = f"""
import atexit as _atexit, fcntl as _fcntl, os as _os, sys as _sys, time as _time
_file = _os.open(_os.path.realpath(_sys.executable), _os.O_RDONLY)
_atexit.register(_time.sleep, 1)
try:
    _fcntl.flock(_file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    _first = True
except BlockingIOError:
    _first = False
if _first:
{FORGE_BELOW}
"""
ATTACK = Attack((code(LOCK),), outcome=Outcome.TAMPERED)
