"""Candidate bugs of a package: SWE-smith's procedural modifiers, one site at a time.

SWE-smith's modifiers ask `flip()` at every place they could change, and change many at once. Here it says
yes at exactly one place, so that each modifier is enumerated place by place, and every bug is one line whose
repair is one `sed` that the tiny policy can write (`mini.conversation`). Needs `envs/smith`.
"""

from __future__ import annotations

import ast
import hashlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import libcst
from swesmith.bug_gen.adapters.python import PythonEntity, get_entities_from_file_py
from swesmith.bug_gen.procedural.python import operations
from swesmith.bug_gen.procedural.python.base import PythonProceduralModifier

from lightning_smith.miniature.policy.conversation import find_repair
from lightning_smith.miniature.tasks.window import usable_path

MAX_SITES = 40
"""Places tried for each function and modifier."""

_COMPARISONS: tuple[tuple[type[libcst.BaseCompOp], ...], ...] = (
    (libcst.LessThan, libcst.LessThanEqual, libcst.GreaterThan, libcst.GreaterThanEqual),
    (libcst.Equal, libcst.NotEqual),
    (libcst.In, libcst.NotIn),
    (libcst.Is, libcst.IsNot),
)


class ComparisonChangeModifier(PythonProceduralModifier):
    """Changes a comparison within its family.

    SWE-smith lists comparisons among the operators it flips, but its transformers visit binary and boolean
    operations only, so none is ever changed.
    """

    name = "func_pm_cmp_change"
    explanation = "A comparison is likely incorrect."

    class Transformer(PythonProceduralModifier.Transformer):
        def leave_ComparisonTarget(  # noqa: N802 (libcst's name)
            self, original_node: libcst.ComparisonTarget, updated_node: libcst.ComparisonTarget
        ) -> libcst.ComparisonTarget:
            old = updated_node.operator
            family = next((family for family in _COMPARISONS if type(old) in family), None)
            if not self.flip() or family is None:
                return updated_node
            chosen = self.parent.rand.choice([kind for kind in family if kind is not type(old)])
            blanks = {
                name: getattr(old, name)
                for name in ("whitespace_before", "whitespace_after")
                if hasattr(old, name)
            }
            return updated_node.with_changes(operator=chosen(**blanks))


MODIFIERS: tuple[tuple[type[PythonProceduralModifier], str], ...] = (
    (operations.OperationChangeModifier, "arith"),
    (operations.OperationFlipOperatorModifier, "arith"),
    (ComparisonChangeModifier, "cmp"),
    (operations.OperationChangeConstantsModifier, "const"),
)
"""Modifiers and the kind of their bugs; flipped `and` and `or` are of the kind bool."""


@dataclass(frozen=True)
class Bug:
    """One bug in one line; the fields are those of `table.MiniTask`."""

    path: str
    entity: str
    kind: str
    modifier: str
    line: int
    buggy: str
    fixed: str
    entity_first: int
    """First line of the function, that of its first decorator: as `co_firstlineno` counts."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def source_files(tree: Path, source: str) -> list[str]:
    """Python files of a package's code, relative to its tree, without its tests."""
    top = tree / source
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))
    names = [file.relative_to(tree).as_posix() for file in files]
    return [
        name
        for name in names
        if usable_path(name) and not any(part.startswith("test") for part in name.split("/"))
    ]


def bugs_of_file(tree: Path, path: str, executed: set[tuple[str, int]] | None = None) -> Iterator[Bug]:
    """Yield every one-line bug of a file's functions, each once.

    `executed`: (path, first line) of the functions to look at; None: all of them.
    """
    text = (tree / path).read_bytes().decode("utf-8")
    if "\r" in text or "\x0c" in text:
        return  # line numbers of Python and of sed would differ
    lines = text.split("\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entities: list[PythonEntity] = []
        get_entities_from_file_py(entities, str(tree / path))
        owners = _innermost_functions(entities)
        seen: set[tuple[int, str]] = set()
        for entity in entities:
            if not isinstance(entity.node, ast.FunctionDef):
                continue
            first = _first_line(entity.node)
            if executed is not None and (path, first) not in executed:
                continue
            for line, buggy, modifier, kind in _entity_bugs(entity, lines, path):
                if owners.get(line) is not entity.node or (line, buggy) in seen:
                    continue
                seen.add((line, buggy))
                yield Bug(path, entity.name, kind, modifier, line, buggy, lines[line - 1], first)


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _innermost_functions(entities: list[PythonEntity]) -> dict[int, ast.AST]:
    """Return the innermost function or class of each line; entities come outermost first."""
    owners: dict[int, ast.AST] = {}
    for entity in entities:
        for line in range(entity.line_start, entity.line_end + 1):
            owners[line] = entity.node
    return owners


def _entity_bugs(entity: PythonEntity, lines: list[str], path: str) -> Iterator[tuple[int, str, str, str]]:
    """(line, buggy line, modifier, kind) of every one-line bug of one function."""
    try:
        module = libcst.parse_module(entity.src_code)
    except libcst.ParserSyntaxError:
        return
    for modifier_class, kind in MODIFIERS:
        for site in range(MAX_SITES):
            modifier = modifier_class(seed=_seed(path, entity.line_start, modifier_class.name, site))
            flips = _flip_only(modifier, site)
            # What `modifier.modify(entity)` does, without parsing the function again for every place.
            rewrite = module.visit(modifier.Transformer(modifier)).code
            if flips.asked <= site:
                break  # the function has fewer places than this
            changed = _changed_line(entity, rewrite, lines)
            if changed is None:
                continue
            line, buggy = changed
            repair = find_repair(buggy, lines[line - 1])
            if repair is not None:
                logical = repair[0] in (" and ", " or ")
                yield line, buggy, modifier.name, "bool" if logical else kind


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


@dataclass
class _Flips:
    asked: int = 0


def _flip_only(modifier: PythonProceduralModifier, site: int) -> _Flips:
    """Make `flip()` say yes at the `site`-th place alone; returns how often it was asked."""
    flips = _Flips()

    def flip() -> bool:
        flips.asked += 1
        return flips.asked == site + 1

    modifier.flip = flip  # type: ignore[method-assign]
    return flips


def _changed_line(entity: PythonEntity, rewrite: str, lines: list[str]) -> tuple[int, str] | None:
    """Line number in the file and new text of the one line that a rewrite changed; None if not just one."""
    before, after = entity.src_code.split("\n"), rewrite.split("\n")
    if len(before) != len(after):
        return None
    differing = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    if len(differing) != 1:
        return None
    index = differing[0]
    line = entity.line_start + index
    original = lines[line - 1]
    indent = entity.node.col_offset if index == 0 else entity.indent_level * entity.indent_size
    prefix, rest = original[:indent], original[indent:]
    if not rest.startswith(before[index]):
        return None  # white space that SWE-smith read otherwise, such as a tab
    return line, prefix + after[index] + rest[len(before[index]) :]


def sample_bugs(bugs: list[Bug], per_function: int, rng: random.Random) -> list[Bug]:
    """At most `per_function` bugs of each function, in random order."""
    shuffled = sorted(bugs, key=lambda bug: (bug.path, bug.line, bug.buggy))
    rng.shuffle(shuffled)
    taken: dict[tuple[str, int], int] = {}
    kept = []
    for bug in shuffled:
        function = (bug.path, bug.entity_first)
        if taken.get(function, 0) < per_function:
            taken[function] = taken.get(function, 0) + 1
            kept.append(bug)
    return kept
