"""Writes the table of the corpus into docs/attacks.md: `uv run --frozen python tests/attacks/table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from attack import Attack, Control, Entry, controls, corpus

from lightning_smith.agent.guard import inspect
from lightning_smith.contracts.outcome import Outcome

PAGE = HERE.parents[1] / "docs/attacks.md"
START, END = "<!-- table: tests/attacks/table.py -->\n", "<!-- end of the table -->\n"
CONTROLS, CONTROLS_END = "<!-- controls: tests/attacks/table.py -->\n", "<!-- end of the controls -->\n"


def table() -> str:
    """The corpus as Markdown, a row an attack."""
    lines = ["| attack | family | where | guard | outcome |", "|---|---|---|---|---|"]
    lines += [_row(entry) for entry in corpus()]
    return "\n".join(lines) + "\n"


def counts() -> str:
    """How many attacks there are, and how many still work."""
    entries = corpus()
    works = sum(bool(getattr(entry.attack, "stays_possible", "")) for entry in entries)
    return f"{len(entries)} attacks in {len({entry.family for entry in entries})} families; {works} stay possible.\n"


def control_table() -> str:
    """The controls as Markdown, a row each."""
    lines = ["| control | where | outcome |", "|---|---|---|"]
    lines += [
        f"| `{entry.name}`: {entry.sentence} | {', '.join(entry.kinds)} | solved |" for entry in controls()
    ]
    return "\n".join(lines) + "\n"


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
    if not isinstance(attack, Control) and attack.stays_possible:
        outcome = f"**stays possible**: {attack.stays_possible}"
    return f"| `{entry.name}`: {entry.sentence} | {entry.family} | {where} | {guard} | {outcome} |"


def page(text: str) -> str:
    """A page with its tables brought up to date."""
    text = _replaced(text, START, f"\n{counts()}\n{table()}\n", END)
    return _replaced(text, CONTROLS, f"\n{control_table()}\n", CONTROLS_END)


def _replaced(text: str, start: str, content: str, end: str) -> str:
    before, _, rest = text.partition(start)
    return f"{before}{start}{content}{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
