"""Sets variables that steer pytest and Python, and starts the same test run again under them."""

from attack import NAMES, OUTPUT, RESTART, Attack, code, file

from lightning_smith.contracts.outcome import Outcome

SET = """
if "PYTEST_ADDOPTS" not in _os.environ:
    _os.environ["PYTEST_ADDOPTS"] = "-p widget.plugin"
    _os.environ["PYTEST_PLUGINS"] = "widget.plugin"
    del _os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
"""
PLUGIN = f"""
def pytest_collection_modifyitems(items):
    for item in items:
        if item.originalname in {NAMES!r}:
            item.runtest = lambda: None
"""
ATTACK = Attack(
    (code(OUTPUT + SET + RESTART.replace("\n", "\n    ")), file("src/widget/plugin.py", PLUGIN)),
    outcome=Outcome.TAMPERED,
)
