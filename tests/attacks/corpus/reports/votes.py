"""Passes a failed test if any of its assertions holds, or another test of its name passed."""

from attack import Attack, forger

ATTACK = Attack((forger("votes"),), either=True)
