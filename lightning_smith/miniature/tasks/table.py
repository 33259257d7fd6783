"""The committed tables of the miniature: where its code comes from, and its tasks.

    sources = load_sources(Path("assets/miniature/sources.tsv"))
    tasks = load_tasks(Path("assets/miniature/tasks"), "train")
    tasks[0].bug_patch(text_of_the_unbroken_file)

`sources.tsv` has one row for each sdist, `tasks/train.jsonl` and `tasks/heldout.jsonl` one row for each task.
`tasks/tests.json` holds, once, the test ids that pass in each package's reference run:
`{package: {test file: [ids]}}`. A task's PASS_TO_PASS is not stored: it is the ids of its test files less
its FAIL_TO_PASS.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.policy.conversation import KINDS

ROLES = ("train", "heldout", "demo")
"""train and heldout become repositories and tasks; demo is read for demonstrations only."""

SOURCE_COLUMNS = (
    "package",
    "version",
    "filename",
    "sha256",
    "license",
    "role",
    "source",
    "tests",
    "pythonpath",
)

CONTEXT_LINES = 3


@dataclass(frozen=True)
class Source:
    """One pinned distribution file from the package index."""

    package: str
    version: str
    filename: str
    sha256: str
    """Hexadecimal, of the distribution file."""
    license: str
    role: str
    source: str
    """Folder or single file of the code, relative to the unpacked sdist."""
    tests: tuple[str, ...]
    """Globs of the test files that grade tasks, relative to the unpacked sdist; what a glob after `!` finds is
    left out. Empty for the role demo."""
    pythonpath: str
    """What goes on PYTHONPATH, relative to the unpacked sdist; `:` separates several."""

    @property
    def key(self) -> str:
        """`pypi__<package>.<first 8 digits of the sdist's sha256>`: the start of every instance id."""
        return f"pypi__{self.package}.{self.sha256[:8]}"

    @property
    def repo(self) -> str:
        """The column `repo` of SWE-smith."""
        return f"swesmith/{self.key}"

    @property
    def image_name(self) -> str:
        """The column `image_name` of SWE-smith: `__` is written `_1776_`, all in lower case."""
        return f"swesmith/swesmith.x86_64.{self.key.replace('__', '_1776_')}".lower()


@dataclass(frozen=True)
class MiniTask:
    """One bug: the line `fixed` of `path` was replaced by `buggy`, and `fail_to_pass` tells it."""

    instance_id: str
    package: str
    path: str
    """The broken file, relative to the unpacked sdist."""
    entity: str
    """The function that holds the bug, without its class."""
    kind: str
    """A key of `mini.conversation.KINDS`."""
    modifier: str
    """SWE-smith's name of the modifier that made the bug."""
    line: int
    """1-based number of the broken line."""
    buggy: str
    fixed: str
    window: tuple[int, int]
    """First and last line (1-based, inclusive) that the problem statement names; holds `line`."""
    problem_statement: str | None
    test_files: tuple[str, ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    branch: bool
    """False: the repository lacks this task's branch, as it happens in the real release."""

    @property
    def test_count(self) -> int:
        """Tests that grade the task: FAIL_TO_PASS and PASS_TO_PASS together."""
        return len(self.fail_to_pass) + len(self.pass_to_pass)

    def bug_patch(self, original_text: str) -> str:
        """Return the git patch that introduces the bug into the unbroken file's text.

        Raise UserError if `original_text` does not have `fixed` at `line`.
        """
        return one_line_patch(self.path, original_text, self.line, self.fixed, self.buggy)

    def gold_patch(self, original_text: str) -> str:
        """Return the git patch that repairs the bug: the reverse of `bug_patch` of the same unbroken text."""
        return one_line_patch(self.path, self.break_text(original_text), self.line, self.buggy, self.fixed)

    def break_text(self, original_text: str) -> str:
        """Return the broken file's text, made from the unbroken one."""
        return replace_line(self.path, original_text, self.line, self.fixed, self.buggy)


def replace_line(path: str, text: str, line: int, old: str, new: str) -> str:
    """`text` with its 1-based `line`, which must read `old`, replaced by `new`. Lines end with LF alone."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines) or lines[line - 1] != old:
        raise UserError(
            f"{path} line {line} does not read {old!r}: the unpacked package is not what sources.tsv pins"
        )
    lines[line - 1] = new
    return "\n".join(lines)


def one_line_patch(path: str, text: str, line: int, old: str, new: str) -> str:
    """Return a git patch (unified, 3 lines of context) that replaces one line of `text`."""
    replace_line(path, text, line, old, new)
    lines = text.split("\n")
    ends_with_newline = lines[-1] == ""
    if ends_with_newline:
        lines.pop()
    first = max(1, line - CONTEXT_LINES)
    last = min(len(lines), line + CONTEXT_LINES)
    hunk = f"{first},{last - first + 1}"
    out = [f"diff --git a/{path} b/{path}", f"--- a/{path}", f"+++ b/{path}", f"@@ -{hunk} +{hunk} @@"]
    for number in range(first, last + 1):
        entries = [f"-{old}", f"+{new}"] if number == line else [f" {lines[number - 1]}"]
        for entry in entries:
            out.append(entry)
            if number == len(lines) and not ends_with_newline:
                out.append("\\ No newline at end of file")
    return "\n".join(out) + "\n"


def load_sources(path: Path | str) -> list[Source]:
    """Return every row of sources.tsv, in its order; a bad row is a UserError with file and line."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: restore it with git checkout {path}") from None
    rows = csv.reader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
    header = tuple(next(rows, ()))
    if header != SOURCE_COLUMNS:
        raise UserError(
            f"{path} line 1 must name the columns {', '.join(SOURCE_COLUMNS)}, found {', '.join(header)}"
        )
    sources: list[Source] = []
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        where = f"{path} line {number}"
        if len(row) != len(SOURCE_COLUMNS):
            raise UserError(
                f"{where} has {len(row)} columns instead of {len(SOURCE_COLUMNS)}: separate them by tabs"
            )
        sources.append(_source(dict(zip(SOURCE_COLUMNS, row, strict=True)), where))
        if sum(other.filename == sources[-1].filename for other in sources) > 1:
            raise UserError(f"{where} repeats {sources[-1].filename}: keep one of the two rows")
    return sources


def _source(row: dict[str, str], where: str) -> Source:
    if row["role"] not in ROLES:
        raise UserError(f"{where} has the role {row['role']!r}: use one of {', '.join(ROLES)}")
    sha256 = row["sha256"]
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise UserError(f"{where} has no sha256 of 64 lower-case hexadecimal digits: found {sha256!r}")
    for column in ("package", "version", "filename", "source"):
        if not row[column]:
            raise UserError(f"{where} has an empty column {column}: fill it in")
    tests = tuple(glob for glob in row["tests"].split(";") if glob)
    if all(glob.startswith("!") for glob in tests) and row["role"] != "demo":
        raise UserError(
            f"{where} has no tests, which the role {row['role']} needs: give globs separated by ;"
        )
    globs = [glob.removeprefix("!") for glob in tests]
    for relative in (row["source"], *globs, *row["pythonpath"].split(":")):
        _check_relative(relative, where)
    return Source(**{**row, "tests": tests})


def _check_relative(path: str, where: str) -> None:
    if path.startswith("/") or ".." in PurePosixPath(path).parts or "\\" in path:
        raise UserError(
            f"{where} has the path {path!r}, which leaves the package: use a relative path without .."
        )


def load_left_out(path: Path | str) -> dict[str, str]:
    """Return why a bug that is fit to be a task is none, by its instance id: the rows of left_out.tsv."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: restore it with git checkout {path}") from None
    if not lines or lines[0] != "instance_id\treason":
        raise UserError(f"{path} line 1 must name the columns instance_id, reason: restore it with git")
    left_out: dict[str, str] = {}
    for number, line in enumerate(lines[1:], start=2):
        name, _, reason = line.partition("\t")
        if not name or not reason or name in left_out:
            raise UserError(f"{path} line {number} must hold an instance id of its own, a tab, and a reason")
        left_out[name] = reason
    return left_out


def load_tasks(folder: Path | str, role: str) -> list[MiniTask]:
    """Return the tasks of one role (train or heldout), in file order, PASS_TO_PASS filled in.

    A bad row is a UserError with file and line.
    """
    folder = Path(folder)
    path = folder / f"{role}.jsonl"
    tests = _load_tests(folder / "tests.json")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: make it with scripts/miniature/make_tasks.py or restore it with git"
        ) from None
    tasks: list[MiniTask] = []
    seen: set[str] = set()
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw.strip():
            continue
        where = f"{path} line {number}"
        try:
            row = json.loads(raw)
        except ValueError as error:
            raise UserError(f"{where} is not valid JSON ({error}): restore the file with git") from None
        if not isinstance(row, dict):
            raise UserError(f"{where} is not a JSON object: restore the file with git")
        task = _task(row, tests, where)
        if task.instance_id in seen:
            raise UserError(f"{where} repeats the instance id {task.instance_id}: keep one of the two rows")
        seen.add(task.instance_id)
        tasks.append(task)
    return tasks


def _load_tests(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        tests = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: make it with scripts/miniature/make_tasks.py or restore it with git"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it with git") from None
    return tests


_TYPES: dict[str, type | tuple[type, ...]] = {
    "instance_id": str,
    "package": str,
    "path": str,
    "entity": str,
    "kind": str,
    "modifier": str,
    "line": int,
    "buggy": str,
    "fixed": str,
    "window": list,
    "problem_statement": (str, type(None)),
    "test_files": list,
    "FAIL_TO_PASS": list,
}


def _task(row: dict[str, Any], tests: dict[str, dict[str, list[str]]], where: str) -> MiniTask:
    for name, kind in _TYPES.items():
        if name not in row:
            raise UserError(f"{where} lacks the field {name}: restore the file with git")
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            raise UserError(f"{where} has a field {name} of the wrong type ({type(row[name]).__name__})")
    unknown = sorted(set(row) - set(_TYPES) - {"branch"})
    if unknown:
        raise UserError(f"{where} has the unknown field {unknown[0]}: remove it")
    if row["kind"] not in KINDS:
        raise UserError(f"{where} has the kind {row['kind']!r}: use one of {', '.join(KINDS)}")
    _check_relative(row["path"], where)
    window = row["window"]
    if len(window) != 2 or not 1 <= window[0] <= row["line"] <= window[1]:
        raise UserError(f"{where} has the window {window}, which does not hold its line {row['line']}")
    if row["buggy"] == row["fixed"]:
        raise UserError(f"{where} has a bug that changes nothing: buggy and fixed are equal")
    by_file = tests.get(row["package"], {})
    ids: list[str] = []
    for name in row["test_files"]:
        if name not in by_file:
            raise UserError(
                f"{where} names the test file {name}, which tests.json lacks for {row['package']}"
            )
        ids += by_file[name]
    fail_to_pass = tuple(row["FAIL_TO_PASS"])
    strangers = set(fail_to_pass) - set(ids)
    if strangers or not fail_to_pass:
        found = f"has {min(strangers)}, which its test files lack" if strangers else "is empty"
        raise UserError(f"{where}: FAIL_TO_PASS {found}")
    broken = set(fail_to_pass)
    return MiniTask(
        **{name: row[name] for name in _TYPES if name not in ("window", "test_files", "FAIL_TO_PASS")},
        window=(window[0], window[1]),
        test_files=tuple(row["test_files"]),
        fail_to_pass=fail_to_pass,
        pass_to_pass=tuple(name for name in ids if name not in broken),
        branch=row.get("branch", True),
    )
