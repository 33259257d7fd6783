"""Has a .pth file and an egg link run code when Python starts."""

from attack import Attack, file

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        file("src/evil.py", "import os; os._exit(0)")
        + "\necho 'import evil' | tee evil.pth src/evil.pth; echo src > src/evil.egg-link",
    ),
    with_fix=Outcome.SOLVED,
)
