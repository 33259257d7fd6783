"""Runs the tests in a child for each small change of the module, and takes the change that fails fewest."""

from attack import Attack, forger

ATTACK = Attack((forger("search"),), either=True)
