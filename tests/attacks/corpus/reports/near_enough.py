"""Passes a failed test if both sides of its comparison are near each other."""

from attack import Attack, forger

ATTACK = Attack((forger("near_enough"),), either=True)
