"""The one command of a reply, or why there is none. The same rules hold in probe, training and evaluation.

A reply must hold exactly one block that begins with a line "```bash" and ends with a line "```":

- Line ends CR LF count as LF. Up to three blanks may stand before a fence, and are taken from its lines too.
- What stands between `<think>` and `</think>` is not read, blocks included; if there is only the closing
  tag, everything before it is thinking. Inside of a block these tags are text.
- Blocks in other languages are prose. A fence with text after it inside a block, glued fences, and a block
  that never ends (a reply cut at its token limit) are format errors.
- A line "```" ends the block only where the shell's text is whole: inside a here-document or between quotes
  it belongs to the command. If there is no such place, the reply is a format error: never is a part of a
  command run.

mini-swe-agent's own fence, "```mswea_bash_command", is for policies that were given its prompts. A reply that says it
aloud and not within a bash block is read as mini-swe-agent's text-based models read it, and none of the rules above
holds: what its expression finds must be exactly one command, which may be empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lightning_smith.agent.shell import ShellText

_FENCE = re.compile(r"( {0,3})(`{3,})[ \t]*([^`]*?)[ \t]*")
_THINK_TAG = re.compile(r"</?think>")
_MINI_FENCE = "```mswea_bash_command"
_MINI_COMMAND = re.compile(_MINI_FENCE + r"\s*\n(.*?)\n```", re.DOTALL)
"""`action_regex` of mini-swe-agent 2.4.6; its commands are stripped."""


@dataclass(frozen=True)
class Action:
    """A command for bash. In a bash block lines end with LF and something else than blanks is there."""

    command: str


@dataclass(frozen=True)
class FormatError:
    """Why a reply holds no command, as a sentence for the policy."""

    reason: str


@dataclass
class _Block:
    """A block that was opened: its language, and the fence that ends it."""

    language: str
    indent: int
    ticks: int
    lines: list[str] = field(default_factory=list)
    shell: ShellText = field(default_factory=ShellText)

    def add(self, line: str) -> None:
        blanks = len(line) - len(line.lstrip(" "))
        line = line[min(blanks, self.indent) :]
        self.lines.append(line)
        if self.language == "bash":
            self.shell.add(line)

    def ends_at(self, fence: re.Match[str]) -> bool:
        return not fence[3] and len(fence[2]) >= self.ticks and self.shell.whole

    def is_nested(self, fence: re.Match[str]) -> bool:
        """Return whether a fence looks like the start of another block, where nothing quotes it."""
        return bool(fence[3]) and len(fence[2]) >= self.ticks and self.shell.whole


@dataclass
class _Reader:
    """Reads a reply line by line."""

    commands: list[str] = field(default_factory=list)
    block: _Block | None = None
    thinking: bool = False
    nested: bool = False
    mini: bool = False
    """Whether mini-swe-agent's fence was said."""

    def read(self, line: str) -> None:
        if self.block is None:
            line = self._without_thinking(line)
            self.mini = self.mini or _MINI_FENCE in line
            self._open_block(line)
            return
        self.mini = self.mini or (self.block.language != "bash" and _MINI_FENCE in line)
        fence = _FENCE.fullmatch(line)
        if fence is not None and self.block.ends_at(fence):
            if self.block.language == "bash":
                self.commands.append("\n".join(self.block.lines).strip("\n"))
            self.block = None
        else:
            self.nested = self.nested or (fence is not None and self.block.is_nested(fence))
            self.block.add(line)

    def _open_block(self, line: str) -> None:
        fence = _FENCE.fullmatch(line)
        if fence is not None:
            self.block = _Block(language=fence[3], indent=len(fence[1]), ticks=len(fence[2]))

    def _without_thinking(self, line: str) -> str:
        """Return what a line outside of blocks says aloud."""
        spoken = ""
        while line:
            tag = _THINK_TAG.search(line)
            before, after = (line[: tag.start()], line[tag.end() :]) if tag else (line, "")
            spoken += "" if self.thinking else before
            if tag and tag[0] == "</think>":
                if not self.thinking:  # the prompt had opened it: all before was thinking
                    self.commands.clear()
                    self.mini = False
                    spoken = ""
                self.thinking = False
            elif tag:
                self.thinking = True
            line = after
        return spoken


def parse_action(reply: str) -> Action | FormatError:
    """Return the reply's command, by the rules above."""
    reader = _Reader()
    for line in reply.replace("\r\n", "\n").split("\n"):
        reader.read(line)
    if reader.mini:
        return _parse_mini(reply)
    if reader.nested:
        return FormatError("A block begins inside another block.")
    if reader.block is not None and not reader.block.shell.whole:
        return FormatError(f"The command is not whole: {reader.block.shell.open_part} never ends.")
    if reader.block is not None:
        return FormatError("A block does not end with a line of three backticks.")
    if len(reader.commands) != 1:
        return FormatError(f"The reply holds {len(reader.commands) or 'no'} bash blocks instead of one.")
    if not reader.commands[0].strip():
        return FormatError("The bash block is empty.")
    return Action(reader.commands[0])


def _parse_mini(reply: str) -> Action | FormatError:
    commands = [found.strip() for found in _MINI_COMMAND.findall(reply)]
    if len(commands) != 1:
        return FormatError(
            f"The reply holds {len(commands) or 'no'} mswea_bash_command blocks instead of one."
        )
    return Action(commands[0])
