"""Demonstrations for the warm start: one-line faults in other people's code, with their repairs.

`find_sites` lists every place of a source file where one operator or number can be changed as
SWE-smith's procedural modifiers change it; `collect` reads the pinned source distributions;
`Demonstrations` draws conversations from the sites. Standard library only.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl
from lightning_smith.miniature.policy.conversation import (
    KINDS,
    MAX_WINDOW_CHARACTERS,
    SUBMIT_COMMAND,
    WINDOW_LINES,
    Edit,
    EditTask,
    candidate_edits,
    find_repair,
    relatives,
    render_reply,
    repair_command,
    submit_prompt,
)
from lightning_smith.miniature.tasks.table import Source
from lightning_smith.repositories.tree_files import SYMLINK, TreeFile

MAX_FUNCTION_LINES = 80
MAX_SITES_PER_FUNCTION = 6
CONTEXT_LINES = 12
"""Lines kept on either side of a fault: enough for a window at any height."""
MAX_COMMON_LINE = 12
"""Lines of at most so many characters (`return a + b`) stand in every program and are never excluded."""

KIND_WEIGHTS: dict[str, float] = {"arith": 0.35, "cmp": 0.35, "bool": 0.15, "const": 0.15}
"""How often each kind is drawn; close to what validated tasks of real packages hold."""

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.And: "and",
    ast.Or: "or",
}

_FLIPPED = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "%", "%": "//", "**": "*"}
"""What SWE-smith's operator flip makes of an arithmetic operator."""


@dataclass(frozen=True)
class Site:
    """One fault that could be put into a source file, and the line as it is.

    `context` holds the unchanged lines around the fault, the first of them numbered `context_first`.
    """

    package: str
    path: str
    kind: str
    entity: str
    entity_lines: tuple[int, int]
    line: int
    buggy: str
    fixed: str
    edit: tuple[str, str, int]
    context_first: int
    context: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a row of the demonstrations file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Site:
        """Inverse of `to_dict`."""
        return cls(
            **{
                **row,
                "entity_lines": tuple(row["entity_lines"]),
                "edit": tuple(row["edit"]),
                "context": tuple(row["context"]),
            }
        )


# ------------------------------------------------------------------------------------ finding sites


def find_sites(source: str, path: str, package: str, rng: random.Random) -> list[Site]:
    """At most `MAX_SITES_PER_FUNCTION` random faults of each function of `source` (one Python file).

    Functions longer than `MAX_FUNCTION_LINES` and coroutines are left out, as are lines with other than
    ASCII characters. Source that does not parse has no sites. The result depends on the arguments alone.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines = source.split("\n")
    found: list[Site] = []
    seen: set[tuple[int, str]] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.end_lineno is None:
            continue
        if function.end_lineno - function.lineno > MAX_FUNCTION_LINES:
            continue
        faults = list(_faults(function, lines, rng))
        rng.shuffle(faults)
        kept = 0
        for kind, number, buggy in faults:
            if kept == MAX_SITES_PER_FUNCTION:
                break
            if (number, buggy) in seen:
                continue
            edit = find_repair(buggy, lines[number - 1])
            if edit is None:
                continue
            seen.add((number, buggy))
            kept += 1
            start = max(0, number - 1 - CONTEXT_LINES)
            found.append(
                Site(
                    package=package,
                    path=path,
                    kind=kind,
                    entity=function.name,
                    entity_lines=(function.lineno, function.end_lineno),
                    line=number,
                    buggy=buggy,
                    fixed=lines[number - 1],
                    edit=edit,
                    context_first=start + 1,
                    context=tuple(lines[start : number + CONTEXT_LINES]),
                )
            )
    return found


def _faults(
    function: ast.FunctionDef, lines: Sequence[str], rng: random.Random
) -> Iterator[tuple[str, int, str]]:
    """(kind, line number, faulty line) of every one-line fault of a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp):
            yield from _arithmetic_faults(node, lines, rng)
            yield from _number_faults(node, lines, rng)
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                symbol = _OPERATORS[type(operator)]
                yield from _replacements("cmp", symbol, [rng.choice(relatives(symbol))], left, right, lines)
        elif isinstance(node, ast.BoolOp):
            symbol = _OPERATORS[type(node.op)]
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from _replacements("bool", symbol, relatives(symbol), left, right, lines)


def _arithmetic_faults(
    node: ast.BinOp, lines: Sequence[str], rng: random.Random
) -> Iterator[tuple[str, int, str]]:
    symbol = _OPERATORS.get(type(node.op))
    if symbol is None:
        return
    # SWE-smith has two modifiers for these: one flips, one draws from the family.
    chosen = {_FLIPPED[symbol]: None, rng.choice(relatives(symbol)): None}
    yield from _replacements("arith", symbol, list(chosen), node.left, node.right, lines)


def _replacements(
    kind: str, symbol: str, others: Iterable[str], left: ast.expr, right: ast.expr, lines: Sequence[str]
) -> Iterator[tuple[str, int, str]]:
    """Yield the line with the operator between two operands replaced by each of `others`, one blank on either side.

    A comparison keeps the blanks it had, so only one with single blanks is repaired by a whole-token edit.
    """
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    line = lines[right.lineno - 1]
    if not line.isascii():  # offsets of the syntax tree count bytes
        return
    between = re.fullmatch(
        rf"(?P<before>[)\s]*?)(?P<blank>\s*){re.escape(symbol)}(?P<blank_after>\s*)(?P<after>[(\s]*)",
        line[left.end_col_offset : right.col_offset],
    )
    if between is None:
        return
    if kind == "cmp" and (between["blank"], between["blank_after"]) != (" ", " "):
        return
    head = line[: left.end_col_offset] + between["before"]
    tail = between["after"] + line[right.col_offset :]
    for other in others:
        yield kind, right.lineno, f"{head} {other} {tail}"


def _number_faults(
    node: ast.BinOp, lines: Sequence[str], rng: random.Random
) -> Iterator[tuple[str, int, str]]:
    """Yield the one integer operand of an operation moved by one.

    Of two integer operands SWE-smith moves both, and no single edit repairs that.
    """
    numbers = [
        side for side in (node.left, node.right) if isinstance(side, ast.Constant) and type(side.value) is int
    ]
    if len(numbers) != 1:
        return
    number = numbers[0]
    line = lines[number.lineno - 1]
    start, stop = number.col_offset, number.end_col_offset
    moved = int(number.value) + rng.choice((-1, 1))  # type: ignore[arg-type]
    if line.isascii() and line[start:stop].isdecimal() and moved >= 0:
        yield "const", number.lineno, f"{line[:start]}{moved}{line[stop:]}"


# --------------------------------------------------------------------------------- reading packages


def python_files(files: Mapping[str, TreeFile], source: str) -> list[tuple[str, str]]:
    """(path, text) of a package's Python files by path, without tests and vendored code.

    `files` is the unpacked sdist, `source` the folder or file of its code.
    """
    root = source.rstrip("/")
    found: list[tuple[str, str]] = []
    for path in sorted(files):
        inside = path == root or path.startswith(root + "/")
        if not inside or not path.endswith(".py") or "/test" in path or "/_vendor" in path:
            continue
        if files[path].mode == SYMLINK:
            continue
        try:
            text = files[path].data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        found.append((path, text.replace("\r\n", "\n")))
    return found


def collect(
    source: Source, files: Mapping[str, TreeFile], limit: int, excluded: set[str]
) -> tuple[list[Site], int]:
    """At most `limit` sites of a package, its files in a fixed random order, and how many were excluded.

    A site is excluded if its repaired line, stripped, is in `excluded`.
    """
    rng = random.Random(source.sha256)
    ordered = python_files(files, source.source)
    rng.shuffle(ordered)
    sites: list[Site] = []
    dropped = 0
    for path, text in ordered:
        for site in find_sites(text, path, source.package, rng):
            if "|" in site.path or len(site.edit[0]) > 8:
                continue
            if site.fixed.strip() in excluded:
                dropped += 1
            elif len(sites) < limit:
                sites.append(site)
        if len(sites) >= limit:
            break
    return sites, dropped


def telling(lines: Iterable[str]) -> set[str]:
    """Return the lines, stripped, that are long enough to tell one program from another."""
    return {line.strip() for line in lines if len(line.strip()) > MAX_COMMON_LINE}


def lines_of_package(files: Mapping[str, TreeFile], source: str) -> set[str]:
    """Return the telling lines of a package's code: a fault put there is repaired to one of them."""
    return telling(line for _, text in python_files(files, source) for line in text.split("\n"))


def lines_of_tasks(tasks_file: Path) -> set[str]:
    """Return the telling repaired lines of a tasks file (JSON lines with `fixed`)."""
    return telling(str(row["fixed"]) for row in read_jsonl(tasks_file))


# ------------------------------------------------------------------------------------------ drawing


class Demonstrations:
    """Draws edit tasks from sites: kinds balanced, windows redrawn, line numbers shifted, most paths made up.

    With paths taken from a finite pool the policy learns them by heart and never learns to copy one,
    which is what it must do in a package that it has not seen.
    """

    def __init__(self, sites: Iterable[Site]) -> None:
        self._by_kind: dict[str, list[Site]] = {kind: [] for kind in KINDS}
        for site in sites:
            self._by_kind[site.kind].append(site)
        for kind, of_kind in self._by_kind.items():
            if not of_kind:
                raise UserError(
                    f"the demonstrations hold no site of kind {kind}: add source packages to sources.tsv"
                )

    @classmethod
    def read(cls, path: Path) -> Demonstrations:
        """Demonstrations of a file that scripts/miniature/make_demonstrations.py wrote."""
        return cls(Site.from_dict(row) for row in read_jsonl(path))

    def counts(self) -> dict[str, int]:
        """Return sites of each kind."""
        return {kind: len(sites) for kind, sites in self._by_kind.items()}

    def draw(self, rng: random.Random) -> EditTask:
        """One edit task."""
        while True:
            kind = rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
            site = rng.choice(self._by_kind[kind])
            shift = self._line_shift(site, rng) if rng.random() < 0.7 else 0
            task = place_window(site, rng, shift)
            if task is None:
                continue
            path = self._made_up_path(rng) if rng.random() < 0.8 else task.path
            parts = path.split("/")
            return replace(task, path="/".join(parts[-rng.choice((1, 2, 2, 3, 3)) :]))

    def _line_shift(self, site: Site, rng: random.Random) -> int:
        return rng.randrange(1500) - min(site.context_first - 1, rng.randrange(1500))

    def _made_up_path(self, rng: random.Random) -> str:
        stem = "__init__"
        if rng.random() >= 0.15:
            stem = rng.choice(("", "", "_")) + self._word(rng)
            if rng.random() < 0.4:
                stem += rng.choice(("_", "")) + self._word(rng)
        root = rng.choice(("", "", "src/", "lib/"))
        package = self._word(rng) + "/"
        module = self._word(rng) + "/" if rng.random() < 0.25 else ""
        return f"{root}{package}{module}{stem}.py"

    def _word(self, rng: random.Random) -> str:
        """Return a word of someone's code, or one made of syllables."""
        if rng.random() < 0.3:
            syllables = rng.choice((1, 2, 3))
            return "".join(
                rng.choice("bcdfghjklmnpqrstvwxyz") + rng.choice("aeiouy") for _ in range(syllables)
            )
        line = rng.choice(self._by_kind["cmp"]).buggy.lower()
        words = [word for word in re.split(r"[^a-z]+", line) if len(word) > 1]
        return rng.choice(words or ["util"])


def place_window(site: Site, rng: random.Random, shift: int = 0) -> EditTask | None:
    """Return the site as a task: window at a random height, line numbers moved by `shift`; None if impossible."""
    lines = list(site.context)
    index = site.line - site.context_first
    lines[index] = site.buggy
    start = max(0, index - rng.randrange(WINDOW_LINES))
    stop = min(len(lines), start + WINDOW_LINES)
    while stop - 1 > index and not lines[stop - 1]:  # the end of a file may be among them
        stop -= 1
    shown = lines[start:stop]
    if sum(map(len, shown)) > MAX_WINDOW_CHARACTERS or any("\t" in line for line in shown):
        return None
    first = site.context_first + start + shift
    if first < 1:
        return None
    repair = Edit(site.line + shift, *site.edit)
    return EditTask(site.kind, site.entity, site.path, first, tuple(shown), repair)


def draw_edit(task: EditTask, correct_share: float, rng: random.Random) -> Edit:
    """Return the task's repair with probability `correct_share`, else another edit of its kind in its window."""
    if rng.random() < correct_share:
        return task.repair
    others = [edit for edit in candidate_edits(task.kind, task.first, task.lines) if edit != task.repair]
    return rng.choice(others) if others else task.repair


def whole_conversation(task: EditTask) -> str:
    """Return all three turns with the right commands: what the tokenizer is trained on."""
    return submit_prompt(task, repair_command(task)) + render_reply(SUBMIT_COMMAND)
