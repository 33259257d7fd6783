"""The loop of a training segment, with a learner that only counts and a dispatch that answers at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from training_segment import TASKS, segment

from lightning_smith.contracts.outcome import Ending, Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, read_json, read_jsonl
from lightning_smith.gateway.dispatch import Finished, RolloutRequest
from lightning_smith.training.checkpoint import newest_whole
from lightning_smith.training.segments import (
    TrainedRollout,
    run_segment,
    step_requests,
    task_order,
    validation_requests,
)


class KilledError(Exception):
    """Stands for SIGKILL."""


@dataclass
class CountingLearner:
    """Its only weight is a text: a digest of all it was trained on."""

    weights: str = "start"
    routes: None = None
    published: list[str] = field(default_factory=list)
    trained: list[list[TrainedRollout]] = field(default_factory=list)

    def load(self, folder: Path) -> None:
        self.weights = (folder / "model.safetensors").read_text()

    def save(self, folder: Path) -> None:
        (folder / "model.safetensors").write_text(self.weights)
        (folder / "optimizer.pt").write_text("none")

    def publish(self, step: int) -> str:
        self.published.append(self.weights)
        return self.weights

    def update(self, rollouts: Sequence[TrainedRollout]) -> dict[str, float | None]:
        self.trained.append(list(rollouts))
        summary = [(rollout.rows[0].tokens, round(rollout.advantage, 6)) for rollout in rollouts]
        self.weights = f"{hash((self.weights, tuple(summary)))}"
        return {"loss": 0.0}


def finish(request: RolloutRequest, reward: float | None = -1.0) -> Finished:
    """What the seed alone decides; `reward` None stands for a broken sandbox."""
    if reward == -1.0:
        reward = float(request.seed % 3 == 0)
    outcome = Outcome.INFRA if reward is None else Outcome.SOLVED if reward else Outcome.UNSOLVED
    record = RolloutRecord(
        request.instance_id, request.sample, outcome, reward, bool(reward), 3, 10, 5, 0.1, "policy", "r", "d",
        request.seed, error=None if reward is not None else "no sandbox", blocked={"git": 1},
    )  # fmt: skip
    answer = [1, request.seed % 50, 2]
    data = {"prompt_token_ids": [5, 6], "response_token_ids": answer, "response_log_probs": [-0.5] * 3}
    return Finished(request, record, [{"event_type": "model_request", "data": data}])


@dataclass
class FakeDispatch:
    """Ends rollouts in reverse order; raises KilledError once `lives` of them have ended."""

    lives: int = 10**9
    judge: Callable[[RolloutRequest], float | None] = lambda request: -1.0
    asked: list[RolloutRequest] = field(default_factory=list)

    def __call__(self, requests: Sequence[RolloutRequest]) -> Iterator[Finished]:
        self.asked += requests
        for request in reversed(requests):
            if self.lives == 0:
                raise KilledError
            self.lives -= 1
            yield finish(request, self.judge(request))


def rewards(root: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["reward"]) for row in read_jsonl(root / "metrics.jsonl")]


def test_order_takes_every_task_before_any_twice():
    steps = task_order(TASKS, 3, seed=1)
    taken = [next(steps) for _ in range(8)]
    assert all(len(set(step)) == 3 for step in taken)
    flat = [task for step in taken for task in step]
    assert sorted(flat) == sorted(TASKS * 3)
    assert len(set(flat[:8])) == 8
    again, other = task_order(TASKS[::-1], 3, seed=1), task_order(TASKS, 3, seed=2)
    assert [next(again) for _ in range(8)] == taken
    assert [next(other) for _ in range(8)] != taken


def test_order_refuses_too_few_tasks():
    with pytest.raises(UserError, match="8 training tasks are too few for tasks_per_step=9"):
        next(task_order(TASKS, 9, seed=1))


def test_seeds_differ_within_a_group_and_between_steps(tmp_path: Path):
    first = step_requests(segment(tmp_path), 1, TASKS[:3])
    second = step_requests(segment(tmp_path), 2, TASKS[:3])
    assert len({request.seed for request in first + second}) == 2 * 3 * 4
    assert first == step_requests(segment(tmp_path), 1, TASKS[:3])


def test_segment_trains_saves_and_counts(tmp_path: Path):
    learner, dispatch = CountingLearner(), FakeDispatch()
    path = run_segment(segment(tmp_path), 4, learner, dispatch)
    assert path == tmp_path / "global_step_4"
    assert [newest_whole(tmp_path, step).step for step in (1, 2, 3, 4)] == [0, 2, 2, 4]
    assert len(dispatch.asked) == 4 * 12
    assert [step for step, _ in rewards(tmp_path)] == [1, 2, 3, 4]
    row = next(read_jsonl(tmp_path / "metrics.jsonl"))
    assert sum(row["outcomes"].values()) == row["rollouts"] == 12
    state = read_json(path / "state.json")
    assert state["reward_history"] == [reward for _, reward in rewards(tmp_path)]
    assert not list(tmp_path.glob("rollouts_step_*")), "what is in the checkpoint is deleted"
    assert len(learner.published) == 5, "the engine gets the start and every step's weights"


def test_where_segments_end_makes_no_difference(tmp_path: Path):
    whole, parts = CountingLearner(), CountingLearner()
    run_segment(segment(tmp_path / "whole"), 7, whole, FakeDispatch())
    run_segment(segment(tmp_path / "parts"), 4, parts, FakeDispatch())
    fresh = CountingLearner()
    run_segment(segment(tmp_path / "parts"), 7, fresh, FakeDispatch())
    assert fresh.weights == whole.weights
    assert rewards(tmp_path / "parts") == rewards(tmp_path / "whole")


@pytest.mark.parametrize("lives", [0, 5, 12, 30, 36, 47, 60, 83])
def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path, lives: int):
    """Also in the middle of a step and between two checkpoints; no finished rollout is run again."""
    undisturbed = CountingLearner()
    run_segment(segment(tmp_path / "undisturbed"), 7, undisturbed, FakeDispatch())

    first, second = FakeDispatch(lives), FakeDispatch()
    with pytest.raises(KilledError):
        run_segment(segment(tmp_path / "killed"), 7, CountingLearner(), first)
    with (tmp_path / "killed/metrics.jsonl").open("a") as torn:
        torn.write('{"step": 99, "rew')
    learner = CountingLearner()
    run_segment(segment(tmp_path / "killed"), 7, learner, second)
    assert learner.weights == undisturbed.weights
    assert rewards(tmp_path / "killed") == rewards(tmp_path / "undisturbed")
    assert len(second.asked) == 7 * 12 - lives


def test_rollouts_of_other_weights_are_not_used_again(tmp_path: Path):
    with pytest.raises(KilledError):
        run_segment(segment(tmp_path), 4, CountingLearner(), FakeDispatch(lives=5))
    dispatch = FakeDispatch()
    run_segment(segment(tmp_path), 4, CountingLearner(weights="other start"), dispatch)
    assert len(dispatch.asked) == 4 * 12


def test_damaged_checkpoint_is_skipped_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run_segment(segment(tmp_path), 4, CountingLearner(), FakeDispatch())
    (tmp_path / "global_step_4/optimizer.pt").write_text("")
    dispatch = FakeDispatch()
    run_segment(segment(tmp_path), 4, CountingLearner(), dispatch)
    assert len(dispatch.asked) == 2 * 12
    said = capsys.readouterr().err
    assert "skipped" in said and "global_step_4: optimizer.pt has 0 bytes" in said
    assert "goes on from step 2" in said


def test_checkpoint_of_other_settings_is_refused(tmp_path: Path):
    run_segment(segment(tmp_path), 4, CountingLearner(), FakeDispatch())
    state = tmp_path / "global_step_4/state.json"
    content = {**read_json(state), "settings_hash": "other"}
    files = tmp_path / "global_step_4/files.json"
    state.write_text(json.dumps(content))
    sealed = read_json(files)
    import hashlib

    sealed["state.json"] = {
        "bytes": state.stat().st_size,
        "sha256": hashlib.sha256(state.read_bytes()).hexdigest(),
    }
    files.write_text(json.dumps(sealed))
    with pytest.raises(UserError, match="settings other, this run has abc123"):
        run_segment(segment(tmp_path), 7, CountingLearner(), FakeDispatch())


def test_rollouts_without_verdict_are_masked_and_counted(tmp_path: Path):
    """No masked rollout reaches the learner, and a group with one verdict is dropped."""

    def judge(request: RolloutRequest) -> float | None:
        if request.instance_id in dropped:
            return 1.0 if request.sample == 0 else None
        return None if request.sample == 3 else float(request.sample == 0)

    dropped = {next(task_order(TASKS, 3, seed=1))[0]}
    learner = CountingLearner()
    run_segment(segment(tmp_path, save_every=1, checkpoints=[1]), 1, learner, FakeDispatch(judge=judge))
    row = next(read_jsonl(tmp_path / "metrics.jsonl"))
    assert (row["dropped_groups"], row["mixed_groups"], row["masked_rollouts"]) == (1, 2, 5)
    assert row["outcomes"] == {"solved": 3, "unsolved": 4, "infra": 5} and row["blocked"] == {"git": 12}
    assert row["trained_rollouts"] == len(learner.trained[0]) == 6
    advantages = sorted(round(rollout.advantage, 3) for rollout in learner.trained[0])
    assert advantages == [-0.577, -0.577, -0.577, -0.577, 1.155, 1.155]


def test_length_penalties_shape_advantages_and_not_the_reward(tmp_path: Path):
    """Records take 3 turns and solve in samples 0 and 1, of task 0 in all."""

    def judge(request: RolloutRequest) -> float:
        return float(request.sample < 2 or request.instance_id == solved)

    solved = next(task_order(TASKS, 3, seed=1))[0]
    penalty = {"start": 1, "end": 5, "most": 0.2}
    learner = CountingLearner()
    changes = {"save_every": 1, "checkpoints": [1], "turn_penalty": penalty}
    run_segment(segment(tmp_path, **changes), 1, learner, FakeDispatch(judge=judge))
    row = next(read_jsonl(tmp_path / "metrics.jsonl"))
    assert row["reward"] == round(8 / 12, 6) and row["length_penalty"] == round(4 * 0.1 / 12, 6)
    assert sorted({round(rollout.advantage, 3) for rollout in learner.trained[0]}) == [-0.866, 0.0, 0.866]


def test_solved_rollouts_that_did_not_submit_are_a_metric_and_named_when_they_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of four solved rollouts a step one did not submit at first, then two, then three; unsolved ones never do."""

    def dispatch(requests: Sequence[RolloutRequest]) -> Iterator[Finished]:
        steps.append(len(steps) + 1)
        for number, request in enumerate(requests):
            done = finish(request, float(number % 3 == 0))
            ending = Ending.FORMAT if number % 3 or number // 3 < steps[-1] else Ending.SUBMITTED
            yield replace(done, record=replace(done.record, ending=ending))

    steps: list[int] = []
    run_segment(segment(tmp_path, checkpoints=[3], save_every=3), 3, CountingLearner(), dispatch)
    shares = [row["solved_unsubmitted"] for row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert shares == [0.25, 0.5, 0.75]
    said = capsys.readouterr().err
    assert "step 3: warning: 75% of the solved rollouts did not submit (25% at first)" in said
    assert said.count("warning") == 1


def test_a_step_without_any_verdict_stops_the_run(tmp_path: Path):
    with pytest.raises(UserError, match=r"step 1: no task has two rollouts with a verdict.*no sandbox"):
        run_segment(segment(tmp_path), 4, CountingLearner(), FakeDispatch(judge=lambda request: None))


def test_step_that_is_reached_trains_nothing(tmp_path: Path):
    run_segment(segment(tmp_path), 7, CountingLearner(), FakeDispatch())
    dispatch = FakeDispatch()
    assert run_segment(segment(tmp_path), 4, CountingLearner(), dispatch).name == "global_step_4"
    assert dispatch.asked == []
    assert [step for step, _ in rewards(tmp_path)] == list(range(1, 8)), "later rows stay"


# ------------------------------------------------------------------------------------ validation

HELD_ASIDE = tuple(f"held-{number}" for number in range(6))
VALIDATED = {"validation": HELD_ASIDE, "validate_every": 3}


def validated(root: Path) -> dict[int, dict[str, Any]]:
    """Validation metrics by step, without what differs between a killed run and one that was not."""
    rows = {
        row["step"]: row["validation"] for row in read_jsonl(root / "metrics.jsonl") if "validation" in row
    }
    return {
        step: {key: value for key, value in row.items() if key not in ("validation_s", "kept_rollouts")}
        for step, row in rows.items()
    }


def solved_by(*tasks: str) -> Callable[[RolloutRequest], float | None]:
    """Validation rollouts of these tasks are solved, others not; training is as elsewhere."""
    return lambda request: -1.0 if request.is_train else float(request.instance_id in tasks)


def test_validation_scores_the_same_tasks_with_the_same_seeds_and_changes_nothing(tmp_path: Path):
    """Every third step and at checkpoints 4 and 7, whichever segment they are in."""
    dispatch, learner, unvalidated = (
        FakeDispatch(judge=solved_by("held-1", "held-4")),
        CountingLearner(),
        CountingLearner(),
    )
    run_segment(segment(tmp_path / "validated", **VALIDATED), 4, learner, dispatch)
    learner = CountingLearner()
    run_segment(segment(tmp_path / "validated", **VALIDATED), 7, learner, dispatch)
    run_segment(segment(tmp_path / "plain"), 7, unvalidated, FakeDispatch())
    assert learner.weights == unvalidated.weights and not list(tmp_path.rglob("validation_step_*"))
    assert rewards(tmp_path / "validated") == rewards(tmp_path / "plain")
    state = read_json(tmp_path / "validated/global_step_7/state.json")
    assert state == read_json(tmp_path / "plain/global_step_7/state.json")
    outcomes = {"solved": 2, "unsolved": 4}
    expected = {"reward": 0.333333, "temperature": 0.7, "rollouts": 6, "outcomes": outcomes}
    expected |= {"solved_unsubmitted": None, "tasks": hash_json(list(HELD_ASIDE))[:12]}
    assert validated(tmp_path / "validated") == dict.fromkeys((3, 4, 6, 7), expected)
    assert validated(tmp_path / "plain") == {}

    asked = [request for request in dispatch.asked if not request.is_train]
    assert asked == validation_requests(segment(tmp_path, **VALIDATED)) * 4
    assert [request.instance_id for request in asked[:6]] == list(HELD_ASIDE)
    seeds = {request.seed for request in dispatch.asked if request.is_train}
    assert len({request.seed for request in asked} - seeds) == 6, "no seed of training is used"


@pytest.mark.parametrize("lives", [0, 5, 12, 36, 38, 41, 42, 58, 63, 100, 107])
def test_a_run_killed_in_or_around_validation_ends_as_one_that_was_not(tmp_path: Path, lives: int):
    undisturbed = CountingLearner()
    run_segment(segment(tmp_path / "undisturbed", **VALIDATED), 7, undisturbed, FakeDispatch())
    first, second = FakeDispatch(lives), FakeDispatch()
    with pytest.raises(KilledError):
        run_segment(segment(tmp_path / "killed", **VALIDATED), 7, CountingLearner(), first)
    learner = CountingLearner()
    run_segment(segment(tmp_path / "killed", **VALIDATED), 7, learner, second)
    assert learner.weights == undisturbed.weights
    assert rewards(tmp_path / "killed") == rewards(tmp_path / "undisturbed")
    assert validated(tmp_path / "killed") == validated(tmp_path / "undisturbed")
    assert len(second.asked) == 7 * 12 + 4 * 6 - lives, "no finished rollout is run again"


def test_validation_at_another_temperature_is_run_again(tmp_path: Path):
    with pytest.raises(KilledError):
        run_segment(segment(tmp_path, **VALIDATED), 4, CountingLearner(), FakeDispatch(lives=40))
    dispatch = FakeDispatch()
    run_segment(segment(tmp_path, temperature=1.0, **VALIDATED), 4, CountingLearner(), dispatch)
    assert len(dispatch.asked) == 12 + 2 * 6, "rollouts of step 3 are kept"
    assert {row["temperature"] for row in validated(tmp_path).values()} == {1.0}


def test_validation_without_a_verdict_has_no_reward_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of six tasks one has a verdict at first, and none afterwards."""
    answers = {"held-0": 1.0}

    def judge(request: RolloutRequest) -> float | None:
        return -1.0 if request.is_train else answers.pop(request.instance_id, None)

    run_segment(segment(tmp_path, **VALIDATED), 4, CountingLearner(), FakeDispatch(judge=judge))
    found = validated(tmp_path)
    assert (found[3]["reward"], found[3]["outcomes"]) == (1.0, {"solved": 1, "infra": 5})
    assert (found[4]["reward"], found[4]["outcomes"]) == (None, {"infra": 6})
    said = capsys.readouterr().err
    assert "step 3: validation reward 1.000, 1 solved, 5 infra" in said
    assert "step 4: validation no verdict, 6 infra" in said


def test_validation_without_tasks_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"validate_every=3, and no task is held aside"):
        segment(tmp_path, validate_every=3)
