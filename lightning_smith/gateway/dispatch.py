"""Send rollouts through a gateway and turn what comes back into rollout records."""

from __future__ import annotations

import base64
import binascii
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.entry_points import AGENT_CLASS
from lightning_smith.core.errors import UserError
from lightning_smith.gateway.client import Gateway

MAX_WINDOW = 48
"""The stock local reconciler lists 50 rollouts: what is beyond them would neither start nor time out."""

ENV_MAP = {
    "LS_INSTANCE_ID": "input.instance_id",
    "LS_SAMPLE": "input.sample",
    "LS_SEED": "input.seed",
    "LS_GRADE": "input.grade",
}
"""Variables of a rollout's agent and where the controller finds their values."""

HOPELESS_AFTER = 16
"""So many failed rollouts at the start, and none that worked, mean a broken machine, not bad luck."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to run; `is_train` picks the temperature, `grade` says whether the agent runs the tests."""

    instance_id: str
    sample: int
    seed: int
    is_train: bool = True
    grade: bool = True
    timeout_s: int = 600


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout's record, its events (with `keep_events`) and, for official grading, the patch it left."""

    request: RolloutRequest
    record: RolloutRecord
    events: list[dict[str, Any]]
    model_patch: bytes | None = None


@dataclass(slots=True)
class _Active:
    request: RolloutRequest
    tries: int
    created_s: float = field(default_factory=time.monotonic)


def dispatch(
    gateway: Gateway,
    requests: Iterable[RolloutRequest],
    *,
    window: int = MAX_WINDOW,
    retries: int = 2,
    check: Callable[[], None] = lambda: None,
    keep_events: bool = False,
    poll_s: float = 0.15,
    agent: str = AGENT_CLASS,
    model: str = "",
    model_revision: str = "",
) -> Iterator[Finished]:
    """Run rollouts, at most `window` on the gateway at a time, and yield each once, in order of their end.

    A rollout that ended FAILED, left no outcome event or has an invalid outcome (`infra`, `grader_error`)
    is run again with the same seed, up to `retries` times; the last record is yielded then. `check` runs at
    every poll and raises if a service has died. `model` and `model_revision` fill the records of rollouts
    that left none.

    Raise UserError if the gateway or a service dies, if nothing ends for longer than any time limit
    allows, or if the first `HOPELESS_AFTER` rollouts all fail. What is on the gateway is deleted in every
    case.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise ValueError(f"window must be between 1 and {MAX_WINDOW}, not {window}")
    dispatcher = _Dispatcher(
        gateway=gateway,
        requests=iter(requests),
        window=window,
        retries=retries,
        keep_events=keep_events,
        agent=agent,
        model=model,
        model_revision=model_revision,
        cursor=gateway.terminal_cursor(),
    )
    try:
        while dispatcher.refill():
            check()
            ended = dispatcher.poll()
            yield from ended
            if not ended:
                time.sleep(poll_s)
    except UserError:
        check()  # a dead service is the cause that helps, the broken connection only its consequence
        raise
    finally:
        dispatcher.delete_active()


@dataclass(slots=True)
class _Dispatcher:
    """State of one `dispatch`: what waits, what is on the gateway, and how far its terminal log was read."""

    gateway: Gateway
    requests: Iterator[RolloutRequest]
    window: int
    retries: int
    keep_events: bool
    agent: str
    model: str
    model_revision: str
    cursor: int
    again: deque[_Active] = field(default_factory=deque)
    active: dict[str, _Active] = field(default_factory=dict)
    last_end_s: float = field(default_factory=time.monotonic)
    failures: int = 0
    successes: int = 0

    def refill(self) -> bool:
        """Fill the window; False once nothing is waiting and nothing is active."""
        fresh: dict[str, _Active] = {}
        while len(self.active) + len(fresh) < self.window:
            waiting = self._next()
            if waiting is None:
                break
            fresh[uuid.uuid4().hex] = waiting
        if fresh:
            if not self.active:
                self.last_end_s = time.monotonic()
            self.active.update(fresh)
            self.gateway.create_rollouts([self._creation(id_, item.request) for id_, item in fresh.items()])
        return bool(self.active)

    def _next(self) -> _Active | None:
        if self.again:
            again = self.again.popleft()
            return _Active(again.request, again.tries + 1)
        request = next(self.requests, None)
        return _Active(request, 0) if request else None

    def _creation(self, rollout_id: str, request: RolloutRequest) -> dict[str, Any]:
        # The input is small on purpose: the controller lists all inputs at every poll.
        return {
            "rollout_id": rollout_id,
            "input": {
                "instance_id": request.instance_id,
                "sample": str(request.sample),
                "seed": str(request.seed),
                "grade": "1" if request.grade else "0",
            },
            "is_train": request.is_train,
            "config": {
                "timeout_seconds": request.timeout_s,
                "local": {"agent_class": self.agent, "env_map": ENV_MAP},
            },
        }

    def poll(self) -> list[Finished]:
        """Rollouts that ended since the last poll and are not run again."""
        page = self.gateway.terminal(self.cursor)
        self.cursor = page.next_after
        finished = []
        for item in page.items:
            active = self.active.get(item["rollout_id"])
            if active is None:  # somebody else's, or one that was counted already
                continue
            self.last_end_s = time.monotonic()
            result = self._collect(item["rollout_id"], active, item["state"])
            del self.active[item["rollout_id"]]
            self.gateway.delete(item["rollout_id"])
            self._count(result.record)
            if not result.record.valid and active.tries < self.retries:
                self.again.append(active)
            else:
                finished.append(result)
        if not page.items:
            self._check_progress()
        return finished

    def _collect(self, rollout_id: str, active: _Active, state: str) -> Finished:
        request = active.request
        if state != "succeeded":
            message = self.gateway.rollout(rollout_id)["status"]["error_message"] or "the rollout failed"
            return Finished(request, self._infra(active, message), [])
        events = self.gateway.events(rollout_id, event_type=None if self.keep_events else "outcome")
        outcomes = [event for event in events if event["event_type"] == "outcome"]
        if not outcomes:
            return Finished(request, self._infra(active, "the agent ended without reporting an outcome"), [])
        try:
            record, patch = read_outcome(request, outcomes[-1]["data"])
        except UserError as error:
            return Finished(request, self._infra(active, str(error)), [])
        return Finished(request, record, events if self.keep_events else [], patch)

    def _infra(self, active: _Active, error: str) -> RolloutRecord:
        return RolloutRecord(
            instance_id=active.request.instance_id,
            sample=active.request.sample,
            outcome=Outcome.INFRA,
            reward=None,
            resolved=None,
            turns=0,
            prompt_tokens=0,
            completion_tokens=0,
            wall_s=round(time.monotonic() - active.created_s, 3),
            model=self.model,
            model_revision=self.model_revision,
            image_digest="",
            seed=active.request.seed,
            error=error,
        )

    def _count(self, record: RolloutRecord) -> None:
        """Give up at once on a machine on which no rollout works."""
        if record.valid:
            self.successes += 1
            return
        self.failures += 1
        if self.successes == 0 and self.failures >= HOPELESS_AFTER:
            raise UserError(
                f"the first {self.failures} rollouts all failed without a verdict, the last one "
                f"({record.instance_id}) with: {record.error}"
            )

    def _check_progress(self) -> None:
        """Raise if nothing ended for longer than the controller would let a rollout run."""
        limit_s = max(active.request.timeout_s for active in self.active.values()) + 60
        if time.monotonic() - self.last_end_s > limit_s:
            raise UserError(
                f"no rollout ended for {limit_s} s although each may take {limit_s - 60} s: "
                "see the controller's log, and end what holds the machine"
            )

    def delete_active(self) -> None:
        """Delete what is still on the gateway, if that can be reached."""
        with suppress(UserError):
            for rollout_id in self.active:
                self.gateway.delete(rollout_id)


def read_outcome(request: RolloutRequest, data: dict[str, Any]) -> tuple[RolloutRecord, bytes | None]:
    """Record and model patch of an `outcome` event. Raise UserError if malformed or another rollout's."""
    row = dict(data)
    encoded = row.pop("model_patch", None)
    record = RolloutRecord.from_dict(row)
    asked = (request.instance_id, request.sample, request.seed)
    if (record.instance_id, record.sample, record.seed) != asked:
        raise UserError(
            f"rollout {request.instance_id} sample {request.sample} reported the outcome of "
            f"{record.instance_id} sample {record.sample} seed {record.seed}"
        )
    try:
        patch = None if encoded is None else base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise UserError(f"the patch of {request.instance_id} is not base64: {error}") from None
    return record, patch
