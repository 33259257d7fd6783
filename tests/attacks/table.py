"""Writes the table of the corpus into docs/attacks.md: `uv run --frozen python tests/attacks/table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from attack import Attack, Entry, corpus  # noqa: E402

from lightning_smith.rollout.guard import inspect  # noqa: E402
from lightning_smith.rollout.outcome import Outcome  # noqa: E402

PAGE = HERE.parents[1] / "docs/attacks.md"
START, END = "<!-- table: tests/attacks/table.py -->\n", "<!-- end of the table -->\n"


def table() -> str:
    """The corpus as Markdown, a row an attack."""
    lines = ["| attack | family | where | guard | outcome |", "|---|---|---|---|---|"]
    lines += [_row(entry) for entry in corpus()]
    return "\n".join(lines) + "\n"


def counts() -> str:
    """How many attacks there are, and how many still work."""
    entries = corpus()
    works = sum(bool(entry.attack.stays_possible) for entry in entries)
    return f"{len(entries)} attacks in {len({entry.family for entry in entries})} families; {works} stay possible.\n"


def _row(entry: Entry) -> str:
    attack = entry.attack
    where, guard = "gateway", ""
    outcome = "no effect"
    if isinstance(attack, Attack):
        where = ", ".join(entry.kinds)
        refused = any(inspect(command).refusal for command in attack.commands)
        guard = "" if attack.patch is not None else "refuses" if refused else "lets through"
        outcome = " or ".join(attack.outcomes)
        if attack.with_fix is Outcome.SOLVED:
            outcome += "; beside the fix: solved"
    if attack.stays_possible:
        outcome = f"**stays possible**: {attack.stays_possible}"
    return f"| `{entry.name}`: {entry.sentence} | {entry.family} | {where} | {guard} | {outcome} |"


def page(text: str) -> str:
    """A page with its table brought up to date."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{counts()}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
