"""One segment of a training run: from the newest whole checkpoint to a step, whatever computes the gradient.

A step takes the next tasks of a seeded order, runs a group of rollouts for each, turns rewards into
advantages, updates the policy and publishes its weights to the rollout engine. Everything a step needs
follows from the recipe, the step's number and the checkpoint before it, so a run that was interrupted ends
as one that was not, and where segments end makes no difference.

Where the recipe says so, the weights that a step leaves are scored on validation tasks. Nothing depends on that score.

Files in the run's folder:
    global_step_N/           live checkpoints (see `checkpoint`)
    rollouts_step_N.jsonl    finished rollouts of steps since the last checkpoint; a resumed run uses them again
    validation_step_N.jsonl  likewise, of validation
    metrics.jsonl            one row a step
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.config.recipes import Recipe
from lightning_smith.contracts.outcome import (
    Outcome,
    RolloutRecord,
    blocked_counts,
    count_disagreements,
    rollout_seed,
    solved_unsubmitted,
    suspicious,
    warn_unsubmitted,
)
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import (
    append_jsonl,
    cut_torn_line,
    hash_json,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from lightning_smith.gateway.dispatch import Finished, RolloutRequest
from lightning_smith.training.advantages import step_advantages
from lightning_smith.training.checkpoint import newest_whole, write_checkpoint
from lightning_smith.training.rewards import group_rewards
from lightning_smith.training.trajectories import RouteShape, Row, build_trajectory

Dispatch = Callable[[Sequence[RolloutRequest]], Iterator[Finished]]
"""Runs rollouts and yields each once, with its events, in order of their end."""


@dataclass(frozen=True)
class TrainedRollout:
    """A valid rollout of a kept group: its training rows and the advantage that all of them share."""

    rows: tuple[Row, ...]
    advantage: float


class Learner(Protocol):
    """What computes updates."""

    routes: RouteShape | None
    """Shape of recorded experts if they are replayed."""

    def load(self, folder: Path) -> None:
        """Take weights and optimizer from a live checkpoint."""
        ...

    def save(self, folder: Path) -> None:
        """Write `model.safetensors`, `optimizer.pt` and whatever else makes the folder a checkpoint."""
        ...

    def publish(self, step: int) -> str:
        """Give the current weights to the rollout engine; returns a fingerprint of them."""
        ...

    def update(self, rollouts: Sequence[TrainedRollout]) -> dict[str, float | None]:
        """One optimizer step; returns what is worth a metric."""
        ...


@dataclass(frozen=True)
class Segment:
    """What a segment works on: `root` is the run's folder, `tasks` the instance ids in a fixed order.

    `validation_tasks` are those that the policy is scored on, all of them each time, at `validation_temperature`.
    """

    name: str
    recipe: Recipe
    settings_hash: str
    tasks: tuple[str, ...]
    root: Path
    rollout_timeout_s: int = 600
    validation_tasks: tuple[str, ...] = ()
    validation_temperature: float = 1.0

    @property
    def metrics_file(self) -> Path:
        """One JSON row a step."""
        return self.root / "metrics.jsonl"

    def rollout_file(self, step: int) -> Path:
        """Finished rollouts of a step that is not in a checkpoint yet."""
        return self.root / f"rollouts_step_{step}.jsonl"

    def validation_file(self, step: int) -> Path:
        """Finished validation rollouts of a step that is not in a checkpoint yet."""
        return self.root / f"validation_step_{step}.jsonl"


def task_order(tasks: Sequence[str], per_step: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Yield the tasks of steps 1, 2, 3, ...: shuffled epochs, none twice before all were taken, none twice in a
    step.

    Where an epoch ends inside a step, tasks that the step has already are left for the next one.
    """
    names = sorted(set(tasks))
    if len(names) < per_step:
        raise UserError(
            f"{len(names)} training tasks are too few for tasks_per_step={per_step}: probe more tasks, or lower it"
        )
    shuffle = random.Random(f"task order {seed}")
    waiting: list[str] = []
    while True:
        step: list[str] = []
        while len(step) < per_step:
            fresh = next((task for task in waiting if task not in step), None)
            if fresh is None:
                waiting += shuffle.sample(names, len(names))
                continue
            waiting.remove(fresh)
            step.append(fresh)
        yield tuple(step)


def step_seed(run_seed: int, step: int) -> int:
    """Seed of a step's rollouts: the same task gets other draws each time it comes round."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}\0step {step}".encode()).digest()[:4], "big")


def step_requests(segment: Segment, step: int, tasks: Sequence[str]) -> list[RolloutRequest]:
    """Return the rollouts of a step, group by group."""
    seed = step_seed(segment.recipe.seed, step)
    return [
        RolloutRequest(
            instance_id=task,
            sample=sample,
            seed=rollout_seed(seed, task, sample, stage="train"),
            is_train=True,
            grade=True,
            timeout_s=segment.rollout_timeout_s,
        )
        for task in tasks
        for sample in range(segment.recipe.rollouts_per_task)
    ]


def choose_validation(tasks: Sequence[str], recipe: Recipe, name: str) -> tuple[str, ...]:
    """Return the validation tasks that a recipe is scored on: all, or none if it never is. UserError if there are
    none.
    """
    if recipe.validate_every is None:
        return ()
    if not tasks:
        raise UserError(
            f"recipe {name} has validate_every={recipe.validate_every}, and no task is held aside for validation: "
            "raise selection.validation_tasks, or set validate_every to null"
        )
    return tuple(tasks)


def validation_requests(segment: Segment) -> list[RolloutRequest]:
    """One rollout a validation task, with the same seed at every step."""
    return [
        RolloutRequest(
            instance_id=task,
            sample=0,
            seed=rollout_seed(segment.recipe.seed, task, 0, stage="validate"),
            is_train=False,
            grade=True,
            timeout_s=segment.rollout_timeout_s,
        )
        for task in segment.validation_tasks
    ]


def reached(segment: Segment, step: int) -> Path | None:
    """Return the live checkpoint of exactly this step, if it is whole."""
    found = newest_whole(segment.root, step)
    return found.path if found.step == step else None


def run_segment(segment: Segment, target: int, learner: Learner, dispatch: Dispatch) -> Path:
    """Train up to step `target` and return its live checkpoint.

    Goes on from the newest whole checkpoint up to there (named together with any damaged one that it
    skips), and inside an interrupted step from the rollouts that had finished.

    Raise UserError if a checkpoint is of other settings, or if a step has no group with two valid rollouts.
    """
    segment.root.mkdir(parents=True, exist_ok=True)
    if path := reached(segment, target):
        return path
    done, history = _resume(segment, target, learner)
    fingerprint = learner.publish(done)
    _keep_metrics(segment, done)
    order = task_order(segment.tasks, segment.recipe.tasks_per_step, segment.recipe.seed)
    for _ in range(done):
        next(order)
    for step in range(done + 1, target + 1):
        started = time.monotonic()
        requests = step_requests(segment, step, next(order))
        finished, kept = _collect(segment, segment.rollout_file(step), requests, fingerprint, dispatch)
        rollout_s = time.monotonic() - started
        row = {"step": step, **_update(segment, step, learner, finished)}
        fingerprint = learner.publish(step)
        row |= {
            "kept_rollouts": kept,
            "rollout_s": round(rollout_s, 3),
            "step_s": round(time.monotonic() - started, 3),
        }
        if segment.recipe.validates(step):
            row |= _validate(segment, step, fingerprint, dispatch)
        history.append(row["reward"])
        append_jsonl(segment.metrics_file, [row])
        _say(segment, row)
        if warning := warn_unsubmitted(row["solved_unsubmitted"], _first_unsubmitted(segment)):
            _print(segment, f"step {step}: {warning}")
        if step % segment.recipe.save_every == 0 or step == target:
            _save(segment, step, history, learner)
    path = reached(segment, target)
    assert path is not None
    return path


# ----------------------------------------------------------------------------------- checkpoints


def _resume(segment: Segment, target: int, learner: Learner) -> tuple[int, list[float | None]]:
    """Load the newest whole checkpoint; (0, []) without one. Raise UserError if it is of other settings."""
    found = newest_whole(segment.root, target)
    for skipped in found.skipped:
        _print(segment, f"skipped {skipped.path}: {skipped.reason}")
    if found.path is None:
        return 0, []
    state = read_json(found.path / "state.json")
    if state["settings_hash"] != segment.settings_hash:
        raise UserError(
            f"{found.path} was trained with settings {state['settings_hash']}, this run has "
            f"{segment.settings_hash}: move that folder away"
        )
    learner.load(found.path)
    _print(segment, f"goes on from step {found.step} ({found.path})")
    return found.step, list(state["reward_history"])


def _save(segment: Segment, step: int, history: Sequence[float | None], learner: Learner) -> None:
    """Write the checkpoint of `step`, then delete the rollouts that it made superfluous."""

    def fill(folder: Path) -> None:
        learner.save(folder)
        write_json(
            folder / "state.json",
            {
                "step": step,
                "settings_hash": segment.settings_hash,
                "order": {"seed": segment.recipe.seed, "tasks_taken": step * segment.recipe.tasks_per_step},
                "reward_history": list(history),
            },
        )

    write_checkpoint(segment.root, step, fill)
    for past in range(1, step + 1):
        segment.rollout_file(past).unlink(missing_ok=True)
        segment.validation_file(past).unlink(missing_ok=True)


def _keep_metrics(segment: Segment, step: int) -> None:
    """Drop rows of steps after the checkpoint: they are computed again."""
    if segment.metrics_file.exists():
        cut_torn_line(segment.metrics_file)
        rows = [row for row in read_jsonl(segment.metrics_file) if row["step"] <= step]
        write_jsonl(segment.metrics_file, rows)


# -------------------------------------------------------------------------------------- rollouts


def _collect(
    segment: Segment,
    path: Path,
    requests: Sequence[RolloutRequest],
    sampled_from: str,
    dispatch: Dispatch,
) -> tuple[list[Finished], int]:
    """Return all rollouts in the order of their requests, and how many an interrupted try had finished and kept in
    `path`.

    `sampled_from` names what they are drawn from; those drawn from anything else are run again.
    """
    finished = _kept_rollouts(path, requests, sampled_from)
    missing = [request for request in requests if request not in finished]
    kept = len(finished)
    if kept:
        _print(segment, f"{kept} of {len(requests)} rollouts of {path.stem} are kept from before")
    for result in dispatch(missing) if missing else ():
        finished[result.request] = result
        append_jsonl(path, [_kept_row(result, sampled_from)])
    return [finished[request] for request in requests], kept


def _kept_row(result: Finished, sampled_from: str) -> dict[str, Any]:
    """One line of a file of finished rollouts; nothing is trained on what validation sampled."""
    events = result.events if result.request.is_train else []
    requests = [event for event in events if event["event_type"] == "model_request"]
    return {"policy": sampled_from, "record": result.record.to_dict(), "events": requests}


def _kept_rollouts(
    path: Path, requests: Sequence[RolloutRequest], sampled_from: str
) -> dict[RolloutRequest, Finished]:
    """Valid rollouts of an interrupted try that were drawn from exactly this."""
    if not path.exists():
        return {}
    cut_torn_line(path)
    wanted = {(request.instance_id, request.sample, request.seed): request for request in requests}
    kept: dict[RolloutRequest, Finished] = {}
    for row in read_jsonl(path):
        record = RolloutRecord.from_dict(row["record"])
        request = wanted.get((record.instance_id, record.sample, record.seed))
        if request is not None and record.valid and row["policy"] == sampled_from:
            kept[request] = Finished(request, record, row["events"])
    return kept


def _validate(segment: Segment, step: int, fingerprint: str, dispatch: Dispatch) -> dict[str, Any]:
    """Score the current weights on the validation tasks: `{"validation": metrics}`, said aloud.

    The reward is raw, over rollouts with a verdict; None if there is none. `tasks` is a hash of the tasks' ids.
    """
    started = time.monotonic()
    finished, kept = _collect(
        segment,
        segment.validation_file(step),
        validation_requests(segment),
        f"{fingerprint} at temperature {segment.validation_temperature}",
        dispatch,
    )
    rewards = [result.record.reward for result in finished if result.record.reward is not None]
    metrics = {
        "reward": round(sum(rewards) / len(rewards), 6) if rewards else None,
        "temperature": segment.validation_temperature,
        "tasks": hash_json(list(segment.validation_tasks))[:12],
        "rollouts": len(finished),
        "outcomes": _outcomes(finished),
        "solved_unsubmitted": solved_unsubmitted(result.record for result in finished),
        "kept_rollouts": kept,
        "validation_s": round(time.monotonic() - started, 3),
    }
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in metrics["outcomes"].items())
    reward = "no verdict" if metrics["reward"] is None else f"reward {metrics['reward']:.3f}"
    _print(segment, f"step {step}: validation {reward}, {outcomes}; {metrics['validation_s']:.1f} s")
    return {"validation": metrics}


# ---------------------------------------------------------------------------------------- update


def _update(segment: Segment, step: int, learner: Learner, finished: Sequence[Finished]) -> dict[str, Any]:
    """Turn a step's rollouts into one update of the learner and one row of metrics."""
    groups: dict[str, list[Finished]] = {}
    for result in finished:
        groups.setdefault(result.request.instance_id, []).append(result)
    rewards = {task: [result.record.reward for result in group] for task, group in groups.items()}
    penalties = segment.recipe.turn_penalty, segment.recipe.prompt_penalty
    shaped = {
        task: group_rewards([result.record for result in group], *penalties) for task, group in groups.items()
    }
    advantages = step_advantages(shaped)
    if not advantages.values:
        errors = Counter(result.record.error for result in finished if not result.record.valid)
        raise UserError(
            f"step {step}: no task has two rollouts with a verdict; the commonest error is: "
            f"{errors.most_common(1)[0][0]}"
        )
    rollouts: list[TrainedRollout] = []
    faults: Counter[str] = Counter()
    turns = unmerged = 0
    for task, values in advantages.values.items():
        for result, advantage in zip(groups[task], values, strict=True):
            if advantage is None:
                continue
            name = f"{task} sample {result.request.sample}"
            trajectory = build_trajectory(result.events, name=name, routes=learner.routes)
            for note in trajectory.notes:
                _print(segment, f"step {step}: masked, {note}")
            faults += trajectory.faults
            turns += result.record.turns
            unmerged += len(trajectory.rows) > 1
            if trajectory.rows:
                rollouts.append(TrainedRollout(trajectory.rows, advantage))
    started = time.monotonic()
    learned = learner.update(rollouts)
    valid = [value for group in rewards.values() for value in group if value is not None]
    return {
        "reward": round(sum(valid) / len(valid), 6),
        "length_penalty": round((sum(valid) - _total(shaped)) / len(valid), 6),
        "groups": len(groups),
        "mixed_groups": advantages.mixed,
        "dropped_groups": advantages.dropped,
        "rollouts": len(finished),
        "trained_rollouts": len(rollouts),
        "masked_rollouts": advantages.masked_rollouts,
        "unmerged_rollouts": unmerged,
        "masked_rows": dict(faults),
        "outcomes": _outcomes(finished),
        "solved_unsubmitted": solved_unsubmitted(result.record for result in finished),
        "blocked": blocked_counts(result.record for result in finished),
        "suspicious": len(suspicious(result.record for result in finished)),
        "harness_disagreements": count_disagreements(result.record for result in finished),
        "mean_turns": round(turns / max(1, len(rollouts)), 3),
        "update_s": round(time.monotonic() - started, 3),
        **learned,
    }


def _first_unsubmitted(segment: Segment) -> float | None:
    """Return the share of solved rollouts without a submission in the first step that solved anything."""
    shares = (row.get("solved_unsubmitted") for row in read_jsonl(segment.metrics_file))
    return next((share for share in shares if share is not None), None)


def _total(rewards: Mapping[str, Sequence[float | None]]) -> float:
    return sum(value for group in rewards.values() for value in group if value is not None)


def _outcomes(finished: Sequence[Finished]) -> dict[str, int]:
    """Rollouts by outcome, in the order of `Outcome`, zeros left out."""
    counts = Counter(result.record.outcome for result in finished)
    return {outcome.value: counts[outcome] for outcome in Outcome if counts[outcome]}


def _say(segment: Segment, row: Mapping[str, Any]) -> None:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in row["outcomes"].items())
    refused = "".join(f", {count} {kind} refused" for kind, count in row["blocked"].items())
    rate = (row["rollouts"] - row["kept_rollouts"]) / max(row["rollout_s"], 1e-3)
    _print(
        segment,
        f"step {row['step']}/{segment.recipe.horizon}: reward {row['reward']:.3f}, "
        f"{row['mixed_groups']}/{row['groups']} groups mixed, {outcomes}{refused}; {row['step_s']:.1f} s, "
        f"{rate:.1f} rollouts/s, update {row['update_s']:.1f} s",
    )


def _print(segment: Segment, text: str) -> None:
    print(f"[train {segment.name}] {text}", file=sys.stderr, flush=True)
