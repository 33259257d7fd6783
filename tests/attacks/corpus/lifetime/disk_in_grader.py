"""Fills the disk while it is graded: no verdict, and no reward."""

from attack import Attack, code

from lightning_smith.rollout.outcome import Outcome

FILL = """
for _number in range(20):
    with open(f"fill{_number}", "wb") as _file:
        _file.write(bytes(30_000_000))
"""
ATTACK = Attack((code(FILL),), room_mb=100, outcome=Outcome.GRADER_ERROR)
