"""Hooks into pytest's collection and replaces the code objects of the test functions by empty ones."""

from attack import Attack, code

from lightning_smith.contracts.outcome import Outcome

WALK = """
import sys as _sys
def _stub_tests():
    for name, module in list(_sys.modules.items()):
        if name.startswith("test_core"):
            for key, value in list(vars(module).items()):
                if key.startswith("test_") and hasattr(value, "__code__"):
                    value.__code__ = (lambda value=None: None).__code__ if value.__code__.co_argcount else (lambda: None).__code__
import _pytest.main as _main
_perform = _main.Session.perform_collect
def _collect(self, *arguments, **options):
    items = _perform(self, *arguments, **options)
    _stub_tests()
    return items
_main.Session.perform_collect = _collect
import _pytest.runner as _runner
_setup = _runner.SetupState.setup
def _set_up(self, item):
    _stub_tests()
    return _setup(self, item)
_runner.SetupState.setup = _set_up
"""
ATTACK = Attack((code(WALK),), outcome=Outcome.TAMPERED)
