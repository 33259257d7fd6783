"""Puts modules named like the tests' helpers where they could be imported first."""

from attack import Attack, file

SHADOW = "import builtins, widget\nTHREE = 3\nwidget.clamp = lambda v, low, high: max(v, low)"
ATTACK = Attack(
    (file("helpers.py", SHADOW), file("src/helpers.py", SHADOW), file("src/helpers/__init__.py", SHADOW))
)
