"""Training rows from recorded model requests, and the experts recorded with them."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.training.trajectories import RouteShape, build_trajectory

SHAPE = RouteShape(layers=4, top_k=2, experts=8)


def turn(prompt: list[int], answer: list[int], **more: Any) -> dict[str, Any]:
    log_probs = [-0.1 * token for token in answer]
    data = {"prompt_token_ids": prompt, "response_token_ids": answer, "response_log_probs": log_probs}
    return {"event_type": "model_request", "data": {**data, "status": "ok", **more}}


def encode(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


def experts(positions: int, layers: int = 4, top_k: int = 2, high: int = 8) -> np.ndarray:
    """Random experts; the last one is always the highest allowed."""
    drawn = np.random.default_rng(0).integers(0, high, (positions, layers, top_k), dtype=np.uint8)
    drawn[-1, -1, -1] = high - 1
    return drawn


def test_turns_that_continue_make_one_row():
    events = [
        turn([10, 11], [1, 2]),
        {"event_type": "outcome", "data": {}},
        turn([10, 11, 1, 2, 20, 21], [3]),
        turn([10, 11, 1, 2, 20, 21, 3, 22], [4, 5]),
    ]
    (row,) = build_trajectory(events, name="x", routes=None).rows
    assert row.tokens == (10, 11, 1, 2, 20, 21, 3, 22, 4, 5)
    assert [token for token, sampled in zip(row.tokens, row.sampled, strict=True) if sampled] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert row.sampled_tokens == 5
    expected = [
        -0.1 * token if sampled else 0.0 for token, sampled in zip(row.tokens, row.sampled, strict=True)
    ]
    assert row.log_probs == pytest.approx(expected)


def test_a_prompt_that_differs_in_one_token_starts_a_new_row():
    events = [turn([10, 11], [1, 2]), turn([10, 11, 1, 9, 20], [3]), turn([10, 11, 1, 9, 20, 3, 21], [4])]
    first, second = build_trajectory(events, name="x", routes=None).rows
    assert first.tokens == (10, 11, 1, 2)
    assert second.tokens == (10, 11, 1, 9, 20, 3, 21, 4)
    assert second.sampled_tokens == 2


def test_failed_requests_are_no_turns():
    events = [
        turn([10], [1]),
        {
            "event_type": "model_request",
            "data": {"status": "error", "prompt_token_ids": [], "http_status": 400},
        },
    ]
    assert len(build_trajectory(events, name="x", routes=None).rows) == 1


@pytest.mark.parametrize("missing", ["prompt_token_ids", "response_token_ids"])
def test_a_server_without_token_ids_stops_the_run(missing: str):
    with pytest.raises(
        UserError, match=r"policy server returns no token ids \(model request 2 of toolz-1 sample 3\)"
    ):
        build_trajectory(
            [turn([1], [2]), turn([1], [2], **{missing: []})], name="toolz-1 sample 3", routes=None
        )


@pytest.mark.parametrize("log_probs", [None, [-0.1]])
def test_a_server_without_log_probabilities_stops_the_run(log_probs: list[float] | None):
    with pytest.raises(UserError, match="policy server returns no log-probabilities"):
        build_trajectory([turn([1], [2, 3], response_log_probs=log_probs)], name="x", routes=None)


# prompt of 10 tokens, answer of 6: 15 positions are fed to the model


def trajectory_with(routed_experts: str | None):
    event = turn(list(range(100, 110)), [1, 2, 3, 4, 5, 6], routed_experts=routed_experts)
    return build_trajectory([event], name="toolz-1 sample 3", routes=SHAPE)


@pytest.mark.parametrize("positions", [15, 16])
def test_whole_and_surplus_experts_are_replayed_by_position(positions: int):
    recorded = experts(positions)
    (row,) = trajectory_with(encode(recorded)).rows
    assert row.routes is not None and row.routes.positions == 15
    replayed = np.frombuffer(row.routes.data, np.uint8).reshape(15, 4, 2)
    assert np.array_equal(replayed, recorded[:15])


@pytest.mark.parametrize(
    ("payload", "kind", "sentence"),
    [
        (encode(experts(9)), "routes_short", "short by 6"),
        (None, "routes_missing", "no routed experts"),
        (encode(experts(15))[:200], "routes_unreadable", "cannot be read"),
        ("%%%", "routes_unreadable", "cannot be read"),
        (encode(experts(15).astype(np.int16)), "routes_unreadable", "cannot be read"),
    ],
)
def test_unusable_experts_mask_the_row_and_are_counted(payload: str | None, kind: str, sentence: str):
    trajectory = trajectory_with(payload)
    assert trajectory.rows == ()
    assert trajectory.faults == {kind: 1}
    assert sentence in trajectory.notes[0] and "model request 1 of toolz-1 sample 3" in trajectory.notes[0]


@pytest.mark.parametrize(
    ("recorded", "sentence"),
    [
        (experts(15, layers=3), "3 layers"),
        (experts(15, top_k=1), "1 a token"),
        (experts(15, high=9), "expert 8"),
        (np.zeros((15, 4, 2), np.uint8), "all recorded experts are 0"),
    ],
)
def test_experts_of_another_model_stop_the_run(recorded: np.ndarray, sentence: str):
    with pytest.raises(UserError, match=sentence):
        trajectory_with(encode(recorded))


def test_a_merged_row_takes_the_experts_of_its_last_turn():
    """The gateway keeps only them: they cover the whole conversation."""
    recorded = experts(6)
    events = [turn([10, 11], [1]), turn([10, 11, 1, 20], [2, 3, 4], routed_experts=encode(recorded))]
    (row,) = build_trajectory(events, name="x", routes=SHAPE).rows
    assert row.routes is not None and row.routes.data == recorded.tobytes()


def test_experts_are_not_read_without_replay():
    (row,) = build_trajectory([turn([1], [2], routed_experts="%%%")], name="x", routes=None).rows
    assert row.routes is None
