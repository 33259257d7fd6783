"""Ends the test run with success from modules that Python imports when it starts."""

from attack import PRINT_PASSED, Attack, file

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "\n".join(
            file(f"{folder}{name}customize.py", PRINT_PASSED + "_claim(); os._exit(0)")
            for folder in ("", "src/")
            for name in ("site", "user")
        ),
    ),
    with_fix=Outcome.SOLVED,
)
