"""Looks for other copies of the package and of its tests on the machine."""

from attack import Attack, forger

ATTACK = Attack((forger("copies"),), either=True)
