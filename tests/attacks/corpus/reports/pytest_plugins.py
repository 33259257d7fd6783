"""Names plugins in a variable of the package and of a module beside the tests."""

from attack import Attack, code, file

PLUGIN = "def pytest_runtest_protocol(item, nextitem): return True"
ATTACK = Attack((code("pytest_plugins = ['widget.plugin']"), file("src/widget/plugin.py", PLUGIN)))
