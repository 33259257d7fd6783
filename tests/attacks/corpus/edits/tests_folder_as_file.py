"""Puts a file in the place of the tests' folder."""

from attack import Attack

ATTACK = Attack(("rm -r tests && echo x > tests",))
