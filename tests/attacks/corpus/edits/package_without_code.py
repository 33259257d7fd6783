"""Deletes the package, so that nothing is left that could fail."""

from attack import Attack

ATTACK = Attack(("rm -r src && mkdir src",))
