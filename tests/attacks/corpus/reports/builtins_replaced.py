"""Replaces exceptions and functions of the builtins that assertions rest on."""

from attack import Attack, code

PATCH = """
import builtins as _builtins
_builtins.AssertionError = type("AssertionError", (BaseException,), {"__init__": lambda self, *_: None})
_builtins.isinstance_ = isinstance
"""
ATTACK = Attack((code(PATCH),))
