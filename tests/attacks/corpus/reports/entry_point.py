"""Registers a pytest plugin by the metadata of a distribution beside the code."""

from attack import Attack, file

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "\n".join(
            file(f"{folder}evil-1.0.{kind}/entry_points.txt", "[pytest11]\nevil = evil\n")
            + "\n"
            + file(
                f"{folder}evil-1.0.{kind}/{'METADATA' if kind == 'dist-info' else 'PKG-INFO'}", "Name: evil"
            )
            for folder in ("", "src/")
            for kind in ("dist-info", "egg-info")
        )
        + "\n"
        + file("src/evil.py", "import os; os._exit(0)"),
    ),
    with_fix=Outcome.SOLVED,
)
