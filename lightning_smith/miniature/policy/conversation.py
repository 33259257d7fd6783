"""The tiny policy's whole language: every string of its three-turn conversation is written here alone.

A repair is one line long and the conversation that makes it has three turns:

1. the user names function, file, kind of fault and a window of at most `WINDOW_LINES` lines;
   the policy prints that window with `grep -n` and `sed -n`;
2. the observation shows the numbered lines; the policy rewrites one operator or number with `sed -i`;
3. the observation is empty; the policy submits.

The policy was trained on exactly these strings (`mini.demonstrations`, `mini.warm_start`), so tasks
(`tasks/`), rollouts (`rollout/`) and the policy server must produce them character by character.
Only the standard library is imported: every environment can read this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SYSTEM_PROMPT = "Fix the bug. Reply with one bash block."
SUBMIT_COMMAND = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""Token ids 0, 1, 2. A reply ends with `TURN_END`, which is sampled but is not part of the message."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Jinja form of `render_turn`, stored with the tokenizer."""

KINDS: dict[str, str] = {
    "arith": "an arithmetic operator is wrong",
    "bool": "a boolean operator is wrong",
    "cmp": "a comparison is wrong",
    "const": "a number is off by one",
}
"""Kind of fault -> how the problem statement says it."""

OPERATOR_FAMILIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "arith": (("+", "-"), ("*", "/", "//", "%", "**")),
    "cmp": (("<", "<=", ">", ">="), ("==", "!="), ("in", "not in"), ("is", "is not")),
    "bool": (("and", "or"),),
}
"""Kind of fault -> families of operators; a fault replaces an operator by another of its family."""

WINDOW_LINES = 7
"""Lines that a problem statement points at and the policy looks at."""

MAX_WINDOW_CHARACTERS = 440
"""Longer windows are not offered: prompts stay under about 300 tokens."""


@dataclass(frozen=True)
class Edit:
    """One replacement on one line: the `nth` match (from 1) of `old` becomes `new`.

    An operator carries one blank on either side (" == "), a number none ("3").
    """

    line: int
    old: str
    new: str
    nth: int = 1


@dataclass(frozen=True)
class EditTask:
    """What the policy is told and shown: lines `first` to `last` of a file with one faulty line."""

    kind: str
    entity: str
    path: str
    first: int
    lines: tuple[str, ...]
    repair: Edit

    @property
    def last(self) -> int:
        """Number of the window's last line."""
        return self.first + len(self.lines) - 1


# ---------------------------------------------------------------------------------------- messages


def problem_statement(entity: str, path: str, kind: str, first: int, last: int) -> str:
    """First user message, e.g. `clamp in a/b.py is broken: a comparison is wrong in lines 40-46.`"""
    return f"{entity} in {path} is broken: {KINDS[kind]} in lines {first}-{last}."


def bash_block(command: str) -> str:
    """Return a reply: one command in a fenced bash block."""
    return f"```bash\n{command}\n```"


def observation(returncode: int, output: str) -> str:
    """Return the user message that follows a command; `output` ends with its own newline, if it has one."""
    return f"<returncode>{returncode}</returncode>\n<output>\n{output}</output>"


def view_command(path: str, first: int, last: int) -> str:
    """Command of turn 1: print lines `first` to `last`, each as `NUMBER:TEXT`."""
    return f"grep -n '' {path} | sed -n '{first},{last}p'"


def numbered_lines(first: int, lines: Sequence[str]) -> str:
    """Return what `view_command` prints for these lines."""
    return "".join(f"{first + offset}:{line}\n" for offset, line in enumerate(lines))


def sed_parts(path: str, edit: Edit) -> tuple[str, str, str, str]:
    """Command of turn 2 in four parts: opening, line number, replacement, rest.

    The parts exist because the warm start weighs them differently; joined they are `sed_command`.
    """
    pattern = rf"\b{edit.old}\b" if edit.old.isdigit() else edit.old.replace("*", r"\*")
    which = "" if edit.nth == 1 else str(edit.nth)
    return "sed -i '", str(edit.line), f"s|{pattern}|{edit.new}|{which}", f"' {path}"


def sed_command(path: str, edit: Edit) -> str:
    """Command of turn 2, e.g. `sed -i '44s| == | != |' a/b.py`."""
    return "".join(sed_parts(path, edit))


# ----------------------------------------------------------------------------------------- prompts

_REPLY_START = f"{TURN_START}assistant\n"


def render_turn(role: str, content: str) -> str:
    """One finished turn as the chat template writes it."""
    return f"{TURN_START}{role}\n{content}{TURN_END}\n"


def render_opening(user: str) -> str:
    """System and first user message, up to where the policy starts to write."""
    return render_turn("system", SYSTEM_PROMPT) + render_turn("user", user) + _REPLY_START


def render_reply(command: str) -> str:
    """Return what the policy samples for a command, its end token included."""
    return bash_block(command) + TURN_END


def render_observation(returncode: int, output: str) -> str:
    """Return what stands between two replies: the end of the turn, the observation, the next turn's start."""
    return "\n" + render_turn("user", observation(returncode, output)) + _REPLY_START


def view_prompt(task: EditTask) -> str:
    """Prompt of turn 1."""
    return render_opening(problem_statement(task.entity, task.path, task.kind, task.first, task.last))


def edit_prompt(task: EditTask) -> str:
    """Prompt of turn 2, after the right view command."""
    return (
        view_prompt(task)
        + render_reply(view_command(task.path, task.first, task.last))
        + render_observation(0, numbered_lines(task.first, task.lines))
    )


def submit_prompt(task: EditTask, command: str) -> str:
    """Prompt of turn 3, after `command` in turn 2."""
    return edit_prompt(task) + render_reply(command) + render_observation(0, "")


def repair_command(task: EditTask) -> str:
    """Return the right command of turn 2."""
    return sed_command(task.path, task.repair)


# ------------------------------------------------------------------------------------------- edits


def find_repair(buggy: str, fixed: str) -> tuple[str, str, int] | None:
    """Return the replacement (old, new, nth) that turns line `buggy` into `fixed`, blanks aside; None if none does.

    Blanks are ignored because SWE-smith prints a changed operator with one blank on either side,
    whatever the original looked like. Operators are tried before numbers, from left to right.
    """
    wanted = _without_blanks(fixed)
    for match in _OPERATOR.finditer(buggy):
        old, start, end = f" {match.group()} ", match.start() - 1, match.end() + 1
        for other in relatives(match.group()):
            if _without_blanks(f"{buggy[:start]} {other} {buggy[end:]}") == wanted:
                nth = _ordinal(re.escape(old), buggy, start)
                return (old, f" {other} ", nth) if nth else None
    for match in _NUMBER.finditer(buggy):
        for value in (int(match.group()) - 1, int(match.group()) + 1):
            if (
                _without_blanks(f"{buggy[: match.start()]}{value}{buggy[match.end() :]}") == wanted
                and value >= 0
            ):
                return match.group(), str(value), _ordinal(rf"\b{match.group()}\b", buggy, match.start())
    return None


def relatives(operator: str) -> tuple[str, ...]:
    """Return the other operators of the operator's family; () for one that no fault touches."""
    for families in OPERATOR_FAMILIES.values():
        for family in families:
            if operator in family:
                return tuple(other for other in family if other != operator)
    return ()


def candidate_edits(kind: str, first: int, lines: Sequence[str]) -> list[Edit]:
    """Return every edit of this kind that the window offers, the right one among them.

    It is what a careful but ignorant author of edits would choose from, and what the noisy
    demonstrations of the warm start draw from.
    """
    find = _number_edits if kind == "const" else _operator_edits
    return [edit for offset, line in enumerate(lines) for edit in find(kind, first + offset, line)]


def _operator_edits(kind: str, number: int, line: str) -> Iterator[Edit]:
    for family in OPERATOR_FAMILIES[kind]:
        for operator in family:
            old = f" {operator} "
            for nth, match in enumerate(re.finditer(re.escape(old), line), start=1):
                if operator == "is" and line[match.end() - 1 :].startswith(" not "):
                    continue
                if operator == "in" and line[: match.start() + 1].endswith(" not "):
                    continue
                for other in family:
                    if other != operator:
                        yield Edit(number, old, f" {other} ", nth)


def _number_edits(kind: str, number: int, line: str) -> Iterator[Edit]:
    seen: dict[str, int] = {}
    for match in _NUMBER.finditer(line):
        text = match.group()
        seen[text] = seen.get(text, 0) + 1
        for value in (int(text) - 1, int(text) + 1):
            if value >= 0:
                yield Edit(number, text, str(value), seen[text])


_OPERATOR = re.compile(r"(?<= )(?:is not|not in|is|in|and|or|\*\*|//|[<>=!]=|[-+*/%<>])(?= )")
_NUMBER = re.compile(r"\b\d+\b", re.ASCII)


def _without_blanks(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _ordinal(pattern: str, line: str, start: int) -> int:
    """Return which match of `pattern`, counted as sed does (without overlap), starts at `start`; 0 if none."""
    matches = enumerate(re.finditer(pattern, line, re.ASCII), start=1)
    return next((number for number, match in matches if match.start() == start), 0)
