"""Passes a failed test if nothing in its source looks altered."""

from attack import Attack, forger

ATTACK = Attack((forger("natural_literals"),), either=True)
