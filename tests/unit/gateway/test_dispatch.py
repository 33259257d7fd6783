"""Turning what a gateway says into records: retries, duplicates, strangers, broken machines."""

import base64
from collections.abc import Callable
from typing import Any, cast

import pytest

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.core.errors import UserError
from lightning_smith.gateway import dispatch as module
from lightning_smith.gateway.client import Gateway, TerminalPage
from lightning_smith.gateway.dispatch import Finished, RolloutRequest, dispatch

Answer = tuple[str, dict[str, Any] | None]
"""State in which a rollout ends, and the data of its outcome event."""


def record(request: RolloutRequest, outcome: str | None = "solved", **changes: Any) -> dict[str, Any]:
    solved = outcome == "solved"
    unknown = outcome in ("infra", "grader_error", None)
    row = {
        "instance_id": request.instance_id,
        "sample": request.sample,
        "outcome": outcome,
        "reward": None if unknown else float(solved),
        "resolved": None if unknown else solved,
        "turns": 3,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "wall_s": 0.1,
        "model": "m",
        "model_revision": "r",
        "image_digest": "sha256:0",
        "seed": request.seed,
    }
    return {**row, **changes}


class FakeGateway:
    """Ends every rollout at the next look at it, as `answers` says; reports each end twice."""

    def __init__(self, answers: Callable[[RolloutRequest, int], Answer]) -> None:
        self.answers = answers
        self.live: dict[str, dict[str, Any]] = {}
        self.results: dict[str, Answer] = {}
        self.order: list[str] = ["a stranger's", "another"]
        self.tries: dict[tuple[str, int], int] = {}
        self.widest = 0
        self.silent = False

    def terminal_cursor(self) -> int:
        return len(self.order)

    def create_rollouts(self, rollouts: list[dict[str, Any]]) -> list[str]:
        for row in rollouts:
            self.live[row["rollout_id"]] = row
        self.widest = max(self.widest, len(self.live))
        return [row["rollout_id"] for row in rollouts]

    def terminal(self, after: int) -> TerminalPage:
        for id_, row in self.live.items():
            if id_ in self.results or self.silent:
                continue
            data = row["input"]
            key = (data["instance_id"], int(data["sample"]))
            self.tries[key] = self.tries.get(key, 0) + 1
            request = RolloutRequest(*key, seed=int(data["seed"]), is_train=row["is_train"])
            self.results[id_] = self.answers(request, self.tries[key])
            self.order += [id_, id_]
        items = [
            {"rollout_id": id_, "state": self.results[id_][0]}
            for id_ in self.order[after:]
            if id_ in self.live
        ]
        return TerminalPage(items, len(self.order), len(self.order))

    def rollout(self, rollout_id: str) -> dict[str, Any]:
        assert rollout_id in self.live
        return {"status": {"error_message": "local subprocess timed out"}}

    def events(self, rollout_id: str, *, event_type: str | None = None) -> list[dict[str, Any]]:
        data = self.results[rollout_id][1]
        events = [{"event_type": "reward", "data": {"value": 1.0}}] if event_type is None else []
        return events + ([{"event_type": "outcome", "data": data}] if data else [])

    def delete(self, rollout_id: str) -> None:
        del self.live[rollout_id]


def requests(count: int) -> list[RolloutRequest]:
    return [RolloutRequest(f"task-{i // 4}", i % 4, seed=100 + i) for i in range(count)]


def run(gateway: FakeGateway, wanted: list[RolloutRequest], **options: Any) -> list[Finished]:
    return list(dispatch(cast(Gateway, gateway), wanted, poll_s=0.0, **options))


def test_every_rollout_once_and_nothing_left() -> None:
    gateway = FakeGateway(lambda request, _: ("succeeded", record(request)))
    finished = run(gateway, requests(200))
    assert sorted((f.record.instance_id, f.record.sample) for f in finished) == sorted(
        (r.instance_id, r.sample) for r in requests(200)
    )
    assert gateway.live == {} and gateway.widest == 48
    assert all(f.events == [] for f in finished)


def test_failed_rollouts_run_again_with_their_seed() -> None:
    seeds: list[int] = []

    def answer(request: RolloutRequest, attempt: int) -> Answer:
        seeds.append(request.seed)
        return ("failed", None) if attempt < 3 else ("succeeded", record(request, "unsolved"))

    (finished,) = run(FakeGateway(answer), requests(1))
    assert finished.record.outcome == Outcome.UNSOLVED and seeds == [100, 100, 100]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda request: ("failed", record(request)), "local subprocess timed out"),
        (lambda request: ("succeeded", None), "the agent ended without reporting an outcome"),
        (lambda request: ("succeeded", record(request, "perfect")), "malformed: 'perfect' is not a valid"),
        (lambda request: ("succeeded", record(request, sample=3)), "reported the outcome of task-0 sample 3"),
        (lambda request: ("succeeded", record(request, seed=7)), "seed 7"),
        (lambda request: ("succeeded", record(request, model_patch="no base64")), "is not base64"),
        (lambda request: ("succeeded", record(request, extra=1)), "unknown key 'extra'"),
    ],
)
def test_no_verdict_becomes_infra_never_a_reward(
    answer: Callable[[RolloutRequest], Answer], error: str
) -> None:
    gateway = FakeGateway(lambda request, _: answer(request))
    (finished,) = run(gateway, requests(1), retries=1, model="m", model_revision="r")
    assert finished.record.outcome == Outcome.INFRA and finished.record.reward is None
    assert error in str(finished.record.error)
    assert (finished.record.seed, finished.record.model_revision) == (100, "r")
    assert gateway.tries == {("task-0", 0): 2}


def test_grader_error_is_retried_and_then_kept() -> None:
    gateway = FakeGateway(lambda request, _: ("succeeded", record(request, "grader_error")))
    (finished,) = run(gateway, requests(1), retries=2)
    assert finished.record.outcome == Outcome.GRADER_ERROR
    assert gateway.tries == {("task-0", 0): 3}


def test_patch_for_official_grading_comes_back_as_bytes() -> None:
    patch = b"\x00diff \xff\n"
    encoded = base64.b64encode(patch).decode()
    gateway = FakeGateway(lambda request, _: ("succeeded", record(request, None, model_patch=encoded)))
    (finished,) = run(gateway, requests(1), keep_events=True)
    assert finished.model_patch == patch and finished.record.outcome is None
    assert [event["event_type"] for event in finished.events] == ["reward", "outcome"]


def test_machine_on_which_nothing_works_is_given_up() -> None:
    gateway = FakeGateway(lambda request, _: ("failed", None))
    with pytest.raises(UserError, match=r"first 16 rollouts all failed .*local subprocess timed out"):
        run(gateway, requests(100))
    assert gateway.live == {}


def test_dead_service_ends_the_stage_and_is_the_error() -> None:
    def check() -> None:
        raise UserError("the controller ended by signal SIGKILL")

    gateway = FakeGateway(lambda request, _: ("succeeded", record(request)))
    with pytest.raises(UserError, match="controller ended"):
        run(gateway, requests(4), check=check)
    assert gateway.live == {}


def test_stall_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1_000_000, 50))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    gateway = FakeGateway(lambda request, _: ("succeeded", record(request)))
    gateway.silent = True
    with pytest.raises(UserError, match="no rollout ended for 660 s"):
        run(gateway, requests(1))


def test_window_has_the_limit_of_the_controller() -> None:
    with pytest.raises(ValueError, match="between 1 and 48"):
        run(FakeGateway(lambda request, _: ("failed", None)), [], window=50)
