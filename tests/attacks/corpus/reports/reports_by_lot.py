"""Turns the failures of each test function into passes or leaves them, by lot."""

from attack import Attack, forger

ATTACK = Attack((forger("reports_by_lot"),), either=True)
