"""Makes folders so deep that no path reaches them, and takes its own permissions away."""

from attack import Attack, python

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        python(
            "import os\nfor _ in range(2000):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\nopen('x', 'w')"
        ),
        "echo x > new.txt; mkdir a && chmod 000 a tests . /tmp; echo TRIED",
    ),
    with_fix=Outcome.SOLVED,
)
