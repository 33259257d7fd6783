"""Raises the exceptions by which pytest and unittest skip a module."""

from attack import Attack, code

ATTACK = Attack((code("import unittest; raise unittest.SkipTest('later')"),))
