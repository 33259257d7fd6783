"""Choose training tasks by difficulty, from the probe's log alone.

A task that the policy always solves, or never, gives a group without advantage. So tasks solved in all
rollouts go out, those solved in some come in, and of those solved in none a seeded sample comes in, as
published for the coding agent. A rate counts valid rollouts only: a broken sandbox must not make a task
look hard.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lightning_smith.errors import UserError
from lightning_smith.probe.draw import seeded_order
from lightning_smith.rollout.outcome import Outcome, RolloutRecord


class Difficulty(StrEnum):
    """What the probe says of a task."""

    ALL_SOLVED = "all_solved"
    MIXED = "mixed"
    ALL_FAILED = "all_failed"
    TOO_FEW = "too_few"
    """Fewer valid rollouts than asked for: to be probed again, never counted as failed."""
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


@dataclass(frozen=True, slots=True)
class Selection:
    """All probed tasks by name, and the names that were chosen for training and validation."""

    tasks: dict[str, ProbedTask]
    chosen: frozenset[str]

    def of(self, difficulty: Difficulty) -> list[str]:
        """Names of the tasks with a verdict, sorted."""
        return sorted(name for name, task in self.tasks.items() if task.difficulty == difficulty)

    def rows(self) -> list[dict[str, Any]]:
        """The table of `selection.tsv`, sorted by name."""
        return [
            {
                "instance_id": name,
                "difficulty": task.difficulty.value,
                "solved": task.solved,
                "valid": task.valid,
                "rollouts": task.rollouts,
                "chosen": int(name in self.chosen),
            }
            for name, task in sorted(self.tasks.items())
        ]

    def summary(self) -> dict[str, Any]:
        """Counts a verdict, and the names that need a look."""
        counts = Counter(task.difficulty for task in self.tasks.values())
        chosen = Counter(self.tasks[name].difficulty for name in self.chosen)
        return {
            "probed": len(self.tasks),
            "counts": {difficulty.value: counts[difficulty] for difficulty in Difficulty},
            "chosen": {
                difficulty.value: chosen[difficulty] for difficulty in Difficulty if chosen[difficulty]
            },
            "rollouts": sum(task.rollouts for task in self.tasks.values()),
            "valid_rollouts": sum(task.valid for task in self.tasks.values()),
            "identical_groups": sum(task.identical for task in self.tasks.values()),
            "probe_again": self.of(Difficulty.TOO_FEW),
            "refused_same_seed": self.of(Difficulty.SAME_SEED),
        }


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


def select(
    records: Iterable[RolloutRecord], *, samples: int, mixed_limit: int | None, all_failed: int, seed: int
) -> Selection:
    """Judge every task in the log and draw the training tasks.

    At most `mixed_limit` mixed tasks (None: all) and `all_failed` tasks that nobody solved, both drawn with
    `seed`. Raises UserError for a log with records of several policies, with a rollout twice, or without any
    mixed task.
    """
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
    tasks = {name: judge(name, group, samples) for name, group in groups.items()}
    selection = Selection(tasks, frozenset())
    mixed = seeded_order(selection.of(Difficulty.MIXED), seed)[:mixed_limit]
    failed = seeded_order(selection.of(Difficulty.ALL_FAILED), seed)[:all_failed]
    if not mixed:
        counts = ", ".join(f"{name} {count}" for name, count in selection.summary()["counts"].items())
        raise UserError(
            f"no probed task is solved in some rollouts and not in others ({counts}): probe more tasks"
        )
    return Selection(tasks, frozenset(mixed + failed))
