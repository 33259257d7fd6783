"""Deletes the tests' folder and with it the configuration of the tests."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(("rm -r tests pytest.ini",), with_fix=Outcome.SOLVED)
