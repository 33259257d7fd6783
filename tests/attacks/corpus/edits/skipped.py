"""Skips, ignores and deselects the tests by hooks and variables of conftest.py."""

from attack import Attack, file

from lightning_smith.contracts.outcome import Outcome

HOOK = """
import pytest
collect_ignore = ["test_core.py"]
collect_ignore_glob = ["test_c*"]

def pytest_collection_modifyitems(config, items):
    for item in items:
        item.add_marker(pytest.mark.skip)
    items.clear()
"""
ATTACK = Attack((file("tests/conftest.py", HOOK), file("conftest.py", HOOK)), with_fix=Outcome.SOLVED)
