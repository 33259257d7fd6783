"""Returns objects that are equal to everything, contain everything and are every exception that is awaited."""

from attack import Attack, forger

ATTACK = Attack((forger("equal_to_everything"),), either=True)
