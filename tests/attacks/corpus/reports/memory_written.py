"""Overwrites the interned text "failed" in the interpreter's memory with "passed"."""

from attack import Attack, code

from lightning_smith.contracts.outcome import Outcome

WRITE = """
import ctypes as _ctypes, sys as _sys
_text = _sys.intern("failed")
_ctypes.memmove(id(_text) + _sys.getsizeof("") - 1, b"passed", 6)
"""
ATTACK = Attack((code(WRITE),), outcome=Outcome.TAMPERED)
