"""Changes the parameters of the tests by a hook that generates tests."""

from attack import Attack, file

from lightning_smith.contracts.outcome import Outcome

HOOK = """
def pytest_generate_tests(metafunc):
    metafunc.definition.own_markers.clear()
    if "value" in metafunc.fixturenames:
        metafunc.parametrize("value", [0, 0], ids=["one - 1", "two [2]"])
"""
ATTACK = Attack((file("tests/conftest.py", HOOK), file("conftest.py", HOOK)), with_fix=Outcome.SOLVED)
