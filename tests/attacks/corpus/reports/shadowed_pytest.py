"""Puts modules named like pytest, its parts and the standard library where they would be imported first."""

from attack import PRINT_PASSED, Attack, file

from lightning_smith.contracts.outcome import Outcome

NAMES = (
    "pytest.py",
    "src/pytest.py",
    "json.py",
    "src/re/__init__.py",
    "src/_pytest/__init__.py",
    "pluggy.py",
    "src/os.so",
)
ATTACK = Attack(
    ("\n".join(file(name, PRINT_PASSED + "_claim()") for name in NAMES),), with_fix=Outcome.SOLVED
)
