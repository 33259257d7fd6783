"""Rules stay short: a script is told its settings by a file, and its shell line fits on a screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "rules").glob("*.smk"))
LONGEST = 110
MOST_FLAGS = 6
MOST_LINES = 150


def shells(path: Path) -> Iterator[tuple[str, str]]:
    """Each rule's name and the text of its shell command, in the lines that it is written in."""
    rule = ""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if found := re.match(r"\s*(?:rule|checkpoint) (\w+):", line):
            rule = found[1]
        if line.strip() == "shell:":
            text = []
            for following in lines[number + 1 :]:
                if not following.strip().startswith('"'):
                    break
                text.append(following.strip().strip('"'))
            yield rule, "\n".join(text)


COMMANDS = [pytest.param(text, id=rule) for path in RULES for rule, text in shells(path)]


@pytest.mark.parametrize("text", COMMANDS)
def test_a_shell_line_is_short_and_has_few_flags(text: str) -> None:
    assert max(map(len, text.split("\n"))) <= LONGEST
    command = text.partition("python scripts/")[2]
    flags = re.findall(r"(?<!\S)--[a-z]", command)
    assert command and len(flags) <= MOST_FLAGS, flags


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) > 35


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_a_file_of_rules_is_short_and_passes_no_prompt(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert "template" not in text
