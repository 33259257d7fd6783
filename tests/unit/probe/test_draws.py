"""What all draws together give: the composition of training and validation, over many seeds, at published sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from predict_settings import settings as predict_settings
from training_segment import TASKS, segment

from lightning_smith.evaluation.predict import make_requests
from lightning_smith.probe.draw import Draw, seeded_order
from lightning_smith.probe.run import draw_tasks, probe_requests
from lightning_smith.probe.select import Difficulty, ProbedTask, select
from lightning_smith.probe.split import Split, split
from lightning_smith.release.evaluation_set import choose_tasks
from lightning_smith.training.segments import step_requests, task_order

SEEDS = range(12)
SOLVED, MIXED, FAILED = Difficulty.ALL_SOLVED, Difficulty.MIXED, Difficulty.ALL_FAILED
CANDIDATES = {
    f"acme.{i:05d}": MIXED if i < 6_000 else FAILED if i < 15_000 else SOLVED for i in range(20_000)
}
PROBED, VALIDATION, TRAINED_FAILED = 17_000, 400, 1_000


class Drawn:
    """Standard scores of how many of `n` drawn things are among `good` of `total`, for many seeds."""

    def __init__(self) -> None:
        self.scores: dict[str, list[float]] = {}

    def add(self, what: str, found: int, n: int, good: int, total: int) -> None:
        share = good / total
        deviation = math.sqrt(n * share * (1 - share) * (total - n) / (total - 1))
        self.scores.setdefault(what, []).append((found - n * share) / deviation)

    def check(self) -> None:
        """Each within five deviations, and their mean within four of its own."""
        for what, scores in self.scores.items():
            assert max(map(abs, scores)) < 5, (what, scores)
            assert abs(sum(scores)) / math.sqrt(len(scores)) < 4, (what, scores)


def run(seed: int) -> tuple[list[str], Split]:
    """Probe, selection and split with one seed for all: the tasks in the probe's order, and both sides."""
    probed = draw_tasks(list(CANDIDATES), PROBED, seed)
    tasks = {name: ProbedTask(name, CANDIDATES[name], 0, 4, 4, False) for name in probed}
    chosen = select(tasks, mixed_limit=None, all_failed=TRAINED_FAILED, validation=VALIDATION, seed=seed)
    patch = "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-{name}\n+x\n"
    sides = (
        [{"instance_id": name, "patch": patch.format(name=name)} for name in sorted(side)]
        for side in (chosen.train, chosen.validation)
    )
    return probed, split(*sides, seed)


def count(names: Iterable[str], difficulty: Difficulty) -> int:
    return sum(CANDIDATES[name] is difficulty for name in names)


def test_composition_of_both_sides() -> None:
    drawn = Drawn()
    for seed in SEEDS:
        probed, both = run(seed)
        train, validation = ([row["instance_id"] for row in rows] for rows in (both.train, both.validation))
        assert len(validation) == VALIDATION and not set(train) & set(validation)
        assert count(train, MIXED) == count(probed, MIXED) - count(validation, MIXED)
        assert count(train, FAILED) == TRAINED_FAILED and count(train, SOLVED) == 0
        assert 5_800 < len(train) < 6_200, "about 6,000"
        for difficulty in (SOLVED, MIXED, FAILED):
            found, there = count(validation, difficulty), count(probed, difficulty)
            drawn.add(f"validation, {difficulty}", found, VALIDATION, there, PROBED)
        # No row's place says how difficult it is, nor when it was probed.
        early = set(probed[: PROBED // 2])
        for start in range(0, 5_000, 1_000):
            part = train[start : start + 1_000]
            drawn.add(f"train {start}", count(part, FAILED), 1_000, TRAINED_FAILED, len(train))
            drawn.add(
                f"train {start}, early", len(early & set(part)), 1_000, len(early & set(train)), len(train)
            )
        half = validation[: VALIDATION // 2]
        drawn.add("validation, order", count(half, FAILED), len(half), count(validation, FAILED), VALIDATION)
        drawn.add("validation, early", len(early & set(validation)), VALIDATION, len(early), PROBED)
        trained_failed = {name for name in train if CANDIDATES[name] is FAILED}
        failed = {name for name in probed if CANDIDATES[name] is FAILED} - set(validation)
        drawn.add(
            "failed, early", len(early & trained_failed), TRAINED_FAILED, len(early & failed), len(failed)
        )
    drawn.check()


def test_draws_with_one_seed_have_nothing_to_do_with_each_other() -> None:
    names = [f"task {i}" for i in range(1_000)]
    drawn = Drawn()
    for seed in range(40):
        parts = {draw.value: set(seeded_order(names, seed, draw)[:250]) for draw in Draw}
        rows = [{"instance_id": name} for name in names]
        parts["held-out instances"] = {row["instance_id"] for row in choose_tasks(rows, 250, seed)}
        parts["order of training"] = set(next(task_order(names, 250, seed)))
        for one, two in itertools.combinations(parts, 2):
            drawn.add(f"{one} and {two}", len(parts[one] & parts[two]), 250, 250, 1_000)
    drawn.check()


def test_no_rollout_of_a_stage_has_the_seed_of_another(tmp_path: Path) -> None:
    """Else training or an evaluation would see again what the probe saw, and selected by."""
    requests = [
        *probe_requests(TASKS, 4, 1, 60),
        *step_requests(segment(tmp_path), 1, TASKS),
        *step_requests(segment(tmp_path), 2, TASKS),
        *make_requests(predict_settings(tmp_path, {"seed": 1, "samples": 4}), TASKS),
    ]
    assert len(requests) == 4 * 4 * len(TASKS) == len({request.seed for request in requests})


@pytest.mark.parametrize("draw", Draw)
def test_a_longer_draw_extends_a_shorter_one(draw: Draw) -> None:
    names = [f"t{i}" for i in range(50)]
    assert seeded_order(names[:40], 1, draw) == [
        name for name in seeded_order(names, 1, draw) if name in names[:40]
    ]
