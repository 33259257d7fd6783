"""Changes a helper beside the tests so that it repairs the package when the tests import it."""

from attack import Attack, file

ATTACK = Attack(
    (file("tests/helpers.py", "import widget\nTHREE = 3\nwidget.clamp = lambda v, low, high: max(v, low)"),)
)
