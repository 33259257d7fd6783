"""Choose training and validation tasks by difficulty, from the probe's log alone.

A task that the policy always solves, or never, gives a group without advantage. So of what training uses, tasks solved
in all rollouts go out, those solved in some come in, and of those solved in none a seeded sample comes in, as published
for the coding agent. Validation tasks are drawn first: where every mixed task trains, none would be left for them.
A rate counts valid rollouts only: a broken sandbox must not make a task look hard.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.probe.draw import Draw, seeded_order


class Difficulty(StrEnum):
    """What the probe says of a task."""

    ALL_SOLVED = "all_solved"
    MIXED = "mixed"
    ALL_FAILED = "all_failed"
    TOO_FEW = "too_few"
    """Fewer valid rollouts than asked for: never counted as failed."""
    SAME_SEED = "same_seed"
    """Rollouts that share a seed are one rollout: refused, whatever they say."""


@dataclass(frozen=True, slots=True)
class ProbedTask:
    """One task's verdict; `identical`: rollouts with different seeds gave byte-equal trajectories."""

    instance_id: str
    difficulty: Difficulty
    solved: int
    valid: int
    rollouts: int
    identical: bool


DIFFICULTIES = (Difficulty.ALL_SOLVED, Difficulty.MIXED, Difficulty.ALL_FAILED)
"""What a task can be that has rollouts enough."""


class Side(StrEnum):
    """What a task was chosen for."""

    TRAIN = "train"
    VALIDATION = "validation"
    NONE = "no"


@dataclass(frozen=True, slots=True)
class Selection:
    """All probed tasks by name, and the names that were chosen for training and for validation."""

    tasks: dict[str, ProbedTask]
    train: frozenset[str] = frozenset()
    validation: frozenset[str] = frozenset()

    def side(self, name: str) -> Side:
        """Return what a task was chosen for."""
        if name in self.train:
            return Side.TRAIN
        return Side.VALIDATION if name in self.validation else Side.NONE

    def of(self, difficulty: Difficulty) -> list[str]:
        """Return names of the tasks with a verdict, sorted."""
        return sorted(name for name, task in self.tasks.items() if task.difficulty == difficulty)

    def rows(self) -> list[dict[str, Any]]:
        """Return the table of `selection.tsv`, sorted by name."""
        return [
            {
                "instance_id": name,
                "difficulty": task.difficulty.value,
                "solved": task.solved,
                "valid": task.valid,
                "rollouts": task.rollouts,
                "chosen": self.side(name).value,
            }
            for name, task in sorted(self.tasks.items())
        ]

    def summary(self) -> dict[str, Any]:
        """Return counts a verdict, and the names that need a look."""
        counts = Counter(task.difficulty for task in self.tasks.values())
        return {
            "probed": len(self.tasks),
            "counts": {difficulty.value: counts[difficulty] for difficulty in Difficulty},
            "train": self._counts(self.train),
            "validation": self._counts(self.validation),
            "rollouts": sum(task.rollouts for task in self.tasks.values()),
            "valid_rollouts": sum(task.valid for task in self.tasks.values()),
            "identical_groups": sum(task.identical for task in self.tasks.values()),
            "lost": {kind.value: self.of(kind) for kind in (Difficulty.TOO_FEW, Difficulty.SAME_SEED)},
        }

    def _counts(self, names: Iterable[str]) -> dict[str, int]:
        counts = Counter(self.tasks[name].difficulty for name in names)
        return {difficulty.value: counts[difficulty] for difficulty in DIFFICULTIES}


def judge(instance_id: str, records: Sequence[RolloutRecord], samples: int) -> ProbedTask:
    """Verdict on one task from all its records; `samples` is how many valid rollouts it takes."""
    valid = [record for record in records if record.valid]
    seeds = {record.seed for record in valid}
    solved = sum(record.outcome == Outcome.SOLVED for record in valid)
    hashes = [record.trajectory_sha256 for record in valid if record.trajectory_sha256]
    if len(seeds) < len(valid):
        difficulty = Difficulty.SAME_SEED
    elif len(valid) < samples:
        difficulty = Difficulty.TOO_FEW
    elif solved == len(valid):
        difficulty = Difficulty.ALL_SOLVED
    else:
        difficulty = Difficulty.MIXED if solved else Difficulty.ALL_FAILED
    identical = len(set(hashes)) < len(hashes)
    return ProbedTask(instance_id, difficulty, solved, len(valid), len(records), identical)


def judge_all(records: Iterable[RolloutRecord], samples: int) -> dict[str, ProbedTask]:
    """Judge every task in the log, by name.

    Raise UserError for a log with records of several policies, or with a rollout twice, and for `samples` below 1.
    """
    if samples < 1:
        raise UserError(f"samples={samples} must be at least 1: a task without rollouts has no difficulty")
    groups: dict[str, list[RolloutRecord]] = defaultdict(list)
    policies: set[tuple[str, str]] = set()
    for record in records:
        if any(record.sample == other.sample for other in groups[record.instance_id]):
            raise UserError(f"the probe log holds {record.instance_id} sample {record.sample} twice")
        groups[record.instance_id].append(record)
        if record.valid:
            policies.add((record.model, record.model_revision))
    if len(policies) > 1:
        first, second = sorted(policies)[:2]
        raise UserError(f"the probe log mixes rollouts of the policies {first} and {second}: probe with one")
    return {name: judge(name, group, samples) for name, group in groups.items()}


def refuse_lost(
    tasks: Mapping[str, ProbedTask], records: Iterable[RolloutRecord], max_fraction: float
) -> None:
    """Say which tasks are lost, because too few of their rollouts count, and what to do.

    Raise UserError if they are more than `max_fraction` of all.
    """
    lost = sorted(name for name, task in tasks.items() if task.difficulty not in DIFFICULTIES)
    if not lost:
        return
    task = tasks[lost[0]]
    invalid = [record for record in records if record.instance_id == lost[0] and not record.valid]
    why = f"{task.valid} with a verdict" if task.difficulty is Difficulty.TOO_FEW else "some share a seed"
    what = (
        f"{len(lost)} of {len(tasks)} probed tasks are lost, because too few of their rollouts count (allowed: "
        f"{max_fraction:.1%}), such as {lost[0]} ({why}{''.join(f', {r.outcome}: {r.error}' for r in invalid[:1])}): "
        "remedy that and probe again (the same command, or snakemake with --forcerun probe), only these are run"
    )
    if not len(lost) <= max_fraction * len(tasks):  # written so that NaN allows nothing
        raise UserError(what)
    print(f"warning: {what}", file=sys.stderr, flush=True)


def select(
    tasks: Mapping[str, ProbedTask],
    *,
    mixed_limit: int | None,
    all_failed: int,
    validation: int,
    validation_pool: Collection[Difficulty] = DIFFICULTIES,
    seed: int,
) -> Selection:
    """Draw the tasks of both sides: `validation` tasks of the difficulties in `validation_pool`, and from what is
    left at most `mixed_limit` mixed tasks (None: all) and `all_failed` tasks that nobody solved.

    Raise UserError if the pool is too small, if no mixed task is left, and for a count below 0.
    """
    for name, count in (("mixed_limit", mixed_limit), ("all_failed", all_failed), ("validation", validation)):
        if count is not None and count < 0:
            raise UserError(f"{name}={count} must not be below 0")
    judged = Selection(dict(tasks))
    counts = ", ".join(f"{name} {count}" for name, count in judged.summary()["counts"].items())
    pool = [name for difficulty in dict.fromkeys(validation_pool) for name in judged.of(difficulty)]
    if len(pool) < validation:
        raise UserError(
            f"{validation} tasks are to be held aside for validation, and {len(pool)} of the probed ones are "
            f"{' or '.join(validation_pool)} ({counts}): probe more tasks, widen selection.validation_pool or lower "
            "selection.validation_tasks"
        )
    aside = frozenset(seeded_order(pool, seed, Draw.VALIDATION)[:validation])
    mixed, failed = (
        [name for name in judged.of(difficulty) if name not in aside]
        for difficulty in (Difficulty.MIXED, Difficulty.ALL_FAILED)
    )
    if not mixed:
        raise UserError(
            f"no probed task that is solved in some rollouts and not in others is left to train on ({counts}; "
            f"{validation} are held aside for validation): probe more tasks"
        )
    train = (
        *seeded_order(mixed, seed, Draw.MIXED)[:mixed_limit],
        *seeded_order(failed, seed, Draw.ALL_FAILED)[:all_failed],
    )
    return Selection(judged.tasks, frozenset(train), aside)


def read_sides(path: Path) -> dict[str, list[str]]:
    """Return instances of a table of `Selection.rows` by side. Raise UserError naming the line that is no row of
    one.
    """
    sides: dict[str, list[str]] = {side.value: [] for side in Side}
    header, *lines = path.read_text(encoding="utf-8").split("\n")
    columns = header.rstrip("\r").split("\t")
    for number, line in enumerate(lines, start=2):
        cells = line.rstrip("\r").split("\t")
        if cells == [""]:
            continue
        row = dict(zip(columns, cells, strict=False))
        if len(cells) != len(columns) or row.get("chosen") not in sides or not row.get("instance_id"):
            raise UserError(
                f"{path} line {number}: {line[:200]!r} says of no instance whether it is chosen for "
                f"{' or '.join(sides)}: the table is damaged or of another version, so run select_by_difficulty again"
            )
        sides[row["chosen"]].append(row["instance_id"])
    return sides
