"""Fills the disk while it is graded, so that the tests cannot be run: its own failure, since they run without it."""

from attack import Attack, code

FILL = """
for _number in range(20):
    with open(f"fill{_number}", "wb") as _file:
        _file.write(bytes(30_000_000))
"""
ATTACK = Attack((code(FILL),), room_mb=100, or_no_verdict=True)
