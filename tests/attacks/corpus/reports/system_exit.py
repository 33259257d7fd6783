"""Raises SystemExit with status 0 while the package is imported."""

from attack import Attack, code

ATTACK = Attack((code("import sys; sys.exit(0)"),))
