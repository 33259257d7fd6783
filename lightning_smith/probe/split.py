"""Keep training and validation apart: no validation task, and no change of one, is seen in training.

SWE-smith makes bugs by combining bugs, so one bug may hold another's change, and two rows may hold the same
patch under different names. A task that shares a change with a validation task does not train.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json
from lightning_smith.probe.draw import Draw, seeded_order
from lightning_smith.release.patches import FileDiff, hunk_lines, split_diff


@dataclass(frozen=True)
class Split:
    """The two sides, rows in seeded orders that say nothing about them, and what was left out of training.

    `left_out` names for each such task the validation task that it shares a change with.
    """

    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    left_out: dict[str, str]


def changes(patch: str) -> set[str]:
    """Return hashes of the changes that a unified diff makes: each run of removed and added lines with its file.

    Line numbers, context, index lines and trailing blanks do not count, so the same change reads the same
    wherever it stands and whatever stands around it. A file without text changes (mode, rename, binary)
    counts as one change.
    """
    return {change for part in split_diff(patch.encode("utf-8", "replace")) for change in _file_changes(part)}


def _changes_of(row: dict[str, Any]) -> set[str]:
    """Changes of a task's bug. Raise UserError for a row whose patch is no text."""
    if not isinstance(patch := row.get("patch"), str):
        raise UserError(
            f"task {row['instance_id']} has no patch, so nothing says which tasks share its change: drop it"
        )
    return changes(patch)


def _file_changes(part: FileDiff) -> set[str]:
    lines = part.data.decode().split("\n")
    path = part.names[-1] if part.names else lines[0]
    runs: list[list[str]] = []
    open_run = False
    for inside, line in hunk_lines(lines):
        if inside and line.startswith("\\"):
            continue
        changed = inside and line[:1] in ("+", "-")
        if changed:
            if not open_run:
                runs.append([])
            runs[-1].append(line.rstrip())
        open_run = changed
    if not runs:
        kept = [line.rstrip() for line in lines if not line.startswith("index ")]
        return {hash_json([path, kept])} if any(kept) else set()
    return {hash_json([path, run]) for run in runs}


def split(train: Sequence[dict[str, Any]], validation: Sequence[dict[str, Any]], seed: int) -> Split:
    """Order both sides, and leave out of training what shares a change with a validation task.

    Raise UserError for an id that is there twice, a row without a patch, and if nothing is left to train on.
    """
    if not train:
        raise UserError("no task was selected for training: run select_by_difficulty again")
    sides = [{row["instance_id"]: row for row in rows} for rows in (train, validation)]
    names = Counter(row["instance_id"] for row in (*train, *validation))
    if repeated := next((name for name, count in names.items() if count > 1), None):
        raise UserError(
            f"instance {repeated} was selected twice: it would train and validate, or count double"
        )
    owner = {change: name for name, row in sorted(sides[1].items()) for change in _changes_of(row)}
    left_out = {
        name: owner[min(shared)]
        for name, row in sides[0].items()
        if (shared := _changes_of(row) & owner.keys())
    }
    kept = sides[0].keys() - left_out.keys()
    if not kept:
        raise UserError(
            f"each of the {len(train)} training tasks shares a change with a validation task: probe more tasks or "
            "lower selection.validation_tasks"
        )
    return Split(
        train=[sides[0][name] for name in seeded_order(kept, seed, Draw.TRAIN_ORDER)],
        validation=[sides[1][name] for name in seeded_order(sides[1], seed, Draw.VALIDATION_ORDER)],
        left_out=dict(sorted(left_out.items())),
    )


def refuse_overlap(train: Iterable[dict[str, Any]], validation: Iterable[dict[str, Any]]) -> None:
    """Raise UserError naming a validation task that shares its id or a change with a training task."""
    seen: dict[str, str] = {}
    for row in train:
        name: str = row["instance_id"]
        seen |= dict.fromkeys({name, *_changes_of(row)}, name)
    for row in validation:
        for key in {row["instance_id"], *_changes_of(row)}:
            if key in seen:
                name = row["instance_id"]
                raise UserError(f"validation task {name} shares a change with {seen[key]}, which trains")
