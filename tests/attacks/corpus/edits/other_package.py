"""Adds a package of the same name where it would be imported before the real one."""

from attack import Attack, file

ATTACK = Attack(
    (
        file("widget/__init__.py", "raise SystemExit(0)"),
        file("tests/widget/__init__.py", "clamp = lambda v, low, high: max(v, low)"),
    )
)
