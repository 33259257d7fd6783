"""What a rollout's tokens open at the gateway: three calls, and only while the rollout has not ended.

| token | call | how often |
|---|---|---|
| model | POST chat completions, of its rollout and attempt and in the mode of the rollout | any number |
| report | POST the event `outcome` | once |
| report | POST the event `reward`, with the reward that the outcome's record has | once, after the outcome |

A token is good until its rollout ends, and not for a length of time. The controller alone decides when a rollout has
had its time and tells the gateway; a second clock could only disagree, as after a laptop's sleep. Rollouts that wait
count as well: a pod may ask before the controller has said that it runs.

A report that is the one kept already is answered and not kept again: an agent whose connection broke sends it twice.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning.schemas import DEFAULT_ATTEMPT_ID, TERMINAL_STATES, Event, Rollout
from agentlightning.server.store import _events, _rollouts

from lightning_smith.gateway.tokens import Grant, Role
from lightning_smith.sandbox.diff import MAX_DIFF_BYTES

MAX_REPORT_BYTES = 2 * MAX_DIFF_BYTES
"""A patch takes four bytes for three in base64; the record beside it is small."""
MAX_COMPLETION_BYTES = 32 * 2**20
"""A conversation of 100 turns whose every character is escaped stays below."""
MAX_REPORT_DEPTH = 8
"""Deeper values would be kept, but could not be read again."""


class RefusedError(Exception):
    """Why a request is not let through: a status of HTTP and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a token may make: its path, and how large its body may be."""

    path: str
    max_bytes: int


def shows_key(headers: Sequence[tuple[bytes, bytes]], key: str) -> bool:
    """Return whether Agent Lightning's server would take a request for one with its key, whatever else it shows.

    Of several headers with one name the server reads the first.
    """
    bearer = next((value for name, value in headers if name == b"authorization"), b"")
    plain = next((value for name, value in headers if name == b"x-api-key"), b"")
    return any(
        hmac.compare_digest(shown, wanted)
        for shown, wanted in ((bearer, b"Bearer " + key.encode()), (plain, key.encode()))
    )


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the token of a request; RefusedError unless it has exactly one."""
    found = [(name, value) for name, value in headers if name in (b"authorization", b"x-api-key")]
    if not found:
        raise RefusedError(401, "this gateway wants its key, or a rollout's token, as a bearer token")
    if len(found) > 1:
        raise RefusedError(401, "a request has one Authorization or X-API-Key header, not several")
    (name, value) = found[0]
    if name == b"authorization":
        if not value.startswith(b"Bearer "):
            raise RefusedError(
                401, "the Authorization header of this gateway reads: Bearer, a blank, the token"
            )
        value = value[7:]
    return value.decode("latin-1")


def allowed_call(grant: Grant, method: str, path: bytes, query: bytes) -> Call:
    """Return the call that a request is; RefusedError unless its token allows it.

    The path is compared as it was sent, byte for byte: nothing is decoded, folded or cut off.
    """
    call = _call(grant, _live_rollout(grant))
    if (method, path, query) != ("POST", call.path.encode(), b""):
        raise RefusedError(403, f"a {grant.role} token of this rollout is good for POST {call.path} alone")
    return call


def parse_report(body: bytes) -> dict[str, Any]:
    """`event_type` and `data` of an event that a rollout may post; RefusedError for anything else."""
    try:
        report = json.loads(body)
        # What cannot be written again, such as half a surrogate pair, would keep the gateway from answering.
        json.dumps(report, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body of a report is JSON in UTF-8") from None
    if not isinstance(report, dict) or report.keys() != {"event_type", "data"}:
        raise RefusedError(400, "a report is an object with event_type and data and nothing else")
    if report["event_type"] not in ("outcome", "reward"):
        raise RefusedError(403, "a rollout reports an outcome and a reward and nothing else")
    if not isinstance(report["data"], dict) or _depth(report["data"]) > MAX_REPORT_DEPTH:
        raise RefusedError(400, f"the data of a report is an object at most {MAX_REPORT_DEPTH} levels deep")
    return report


def kept_report(grant: Grant, report: dict[str, Any]) -> Event | None:
    """Return the event that says the same already, None if the report may be kept; RefusedError if it may not."""
    _live_rollout(grant)
    kept: dict[str, Event] = {}
    for event in _events.get(grant.rollout_id, {}).get(grant.attempt, []):
        kept.setdefault(event.event_type, event)
    kind, data = report["event_type"], report["data"]
    if kind in kept:
        if kept[kind].data == data:
            return kept[kind]
        raise RefusedError(403, f"this rollout has reported another {kind} already")
    if kind == "reward":
        _check_reward(data, kept.get("outcome"))
    return None


def _check_reward(data: dict[str, Any], outcome: Event | None) -> None:
    if outcome is None:
        raise RefusedError(403, "a rollout reports its outcome before its reward")
    value, reward = data.get("value"), outcome.data.get("reward")
    if data.keys() != {"value"} or not _is_number(value) or not _is_number(reward) or value != reward:
        raise RefusedError(403, "a reward is an object with value, the reward of the rollout's outcome")


def _live_rollout(grant: Grant) -> Rollout:
    rollout = _rollouts.get(grant.rollout_id)
    if rollout is None:
        raise RefusedError(403, "this gateway does not know the token's rollout, or no longer")
    if rollout.status.state in TERMINAL_STATES:
        raise RefusedError(403, "the token's rollout has ended")
    if grant.attempt != (rollout.status.last_attempt_id or DEFAULT_ATTEMPT_ID):
        raise RefusedError(403, "the token is of another attempt of its rollout")
    return rollout


def _call(grant: Grant, rollout: Rollout) -> Call:
    attempt = f"{grant.rollout_id}/attempt/{grant.attempt}"
    if grant.role is Role.REPORT:
        return Call(f"/api/rollouts/{attempt}/events", MAX_REPORT_BYTES)
    mode = "train" if rollout.is_train else "val"
    return Call(f"/proxy/rollout/{attempt}/mode/{mode}/openai/v1/chat/completions", MAX_COMPLETION_BYTES)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _depth(value: object) -> int:
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        return 0
    return 1 + max(map(_depth, inner), default=0)
