"""Split the chosen tasks into training and validation so that no validation task was seen in training.

SWE-smith makes bugs by combining bugs, so one bug may hold another's change, and two rows may hold the same
patch under different names. Tasks that share a change go to the same side.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.errors import UserError
from lightning_smith.files import hash_json
from lightning_smith.probe.draw import seeded_order

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True)
class Split:
    """The two sides, rows in the seeded order, and the groups of related tasks (two and more)."""

    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    groups: list[list[str]]


def changes(patch: str) -> set[str]:
    """Hashes of the changes that a unified diff makes: each run of removed and added lines with its file.

    Line numbers, context, index lines and trailing blanks do not count, so the same change reads the same
    wherever it stands and whatever stands around it. A file without text changes (mode, rename, binary)
    counts as one change.
    """
    found: set[str] = set()
    for section in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE):
        if section.strip():
            found |= _section_changes(section.split("\n"))
    return found


def _section_changes(lines: list[str]) -> set[str]:
    path = _path(lines)
    runs: list[list[str]] = []
    open_run = False
    removed = added = 0  # lines of the hunk that are still to come; outside of hunks, `---` is a header
    for line in lines:
        if removed <= 0 and added <= 0:
            open_run = False
            if match := _HUNK.match(line):
                removed, added = (int(count) if count else 1 for count in match.groups())
            continue
        if line.startswith("\\"):
            continue
        mark = line[:1]
        removed -= mark != "+"
        added -= mark != "-"
        if mark in ("+", "-"):
            if not open_run:
                runs.append([])
            runs[-1].append(line.rstrip())
        open_run = mark in ("+", "-")
    if not runs:
        kept = [line.rstrip() for line in lines if not line.startswith("index ")]
        return {hash_json([path, kept])}
    return {hash_json([path, run]) for run in runs}


def _path(lines: list[str]) -> str:
    """The changed file: of `+++`, or of `---` where it is deleted, or of the first line."""
    for prefix in ("+++ ", "--- "):
        for line in lines:
            if line.startswith(prefix) and not line.startswith(prefix + "/dev/null"):
                return line[len(prefix) :].split("\t")[0].rstrip().removeprefix("a/").removeprefix("b/")
    return lines[0]


def related(patches: dict[str, str]) -> list[list[str]]:
    """Names in groups that are linked by a shared change, directly or through others; all sorted."""
    parent = {name: name for name in patches}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    owner: dict[str, str] = {}
    for name in sorted(patches):
        for change in sorted(changes(patches[name])):
            parent[root(name)] = root(owner.setdefault(change, name))
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(patches):
        groups[root(name)].append(name)
    return sorted(groups.values())


def split(rows: Sequence[dict[str, Any]], validation: int, seed: int) -> Split:
    """Hold `validation` tasks aside, drawn with `seed`; the others train.

    Raises UserError for a repeated id, and if that many tasks cannot be held aside: because there are too
    few, or because all that remain are tied to others.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["instance_id"] in by_name:
            raise UserError(f"instance {row['instance_id']} was selected twice: it would train and validate")
        by_name[row["instance_id"]] = row
    groups = {group[0]: group for group in related({name: row["patch"] for name, row in by_name.items()})}
    held: list[str] = []
    for first in seeded_order(groups, seed):
        if len(held) + len(groups[first]) <= validation:
            held += groups[first]
    if len(held) < validation or len(held) == len(by_name):
        raise UserError(
            f"{validation} of {len(by_name)} selected tasks cannot be held aside for validation (at most "
            f"{len(held)}, and some must train): select more tasks or lower validation_tasks"
        )
    aside = set(held)
    return Split(
        train=[by_name[name] for name in seeded_order(by_name.keys() - aside, seed)],
        validation=[by_name[name] for name in seeded_order(aside, seed)],
        groups=[group for group in groups.values() if len(group) > 1],
    )


def refuse_overlap(train: Iterable[dict[str, Any]], validation: Iterable[dict[str, Any]]) -> None:
    """Raise UserError naming a validation task that shares its id or a change with a training task."""
    seen: dict[str, str] = {}
    for row in train:
        name: str = row["instance_id"]
        seen |= dict.fromkeys({name, *changes(row["patch"])}, name)
    for row in validation:
        for key in {row["instance_id"], *changes(row["patch"])}:
            if key in seen:
                name = row["instance_id"]
                raise UserError(f"validation task {name} shares a change with {seen[key]}, which trains")
