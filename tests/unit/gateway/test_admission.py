"""The guard around the real application of Agent Lightning's gateway: which requests reach it, and as what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
from agentlightning.server.app import create_app
from agentlightning.server.store import _events, _rollouts, _terminal_order
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_smith.gateway.admission import MAX_REPORT_BYTES, MAX_REPORT_DEPTH
from lightning_smith.gateway.server import Guard, Message, Receive, Scope, Send
from lightning_smith.gateway.tokens import Role, mint

KEY = "sk-run-0123456789abcdef"
PROXY = {"model_name": "stub", "train": {"temperature": 1}, "val": {"temperature": 0.7}}
OWN, OTHER = "0a1b", "2c3d"
EVENTS = f"/api/rollouts/{OWN}/attempt/0/events"
COMPLETIONS = f"/proxy/rollout/{OWN}/attempt/0/mode/train/openai/v1/chat/completions"
OUTCOME = {"event_type": "outcome", "data": {"outcome": "solved", "reward": 1.0}}
REWARD = {"event_type": "reward", "data": {"value": 1.0}}

Headers = list[tuple[bytes, bytes]]


class Gateway:
    """The real application behind the guard, and what of each request reached it."""

    def __init__(self) -> None:
        self.application = create_app({"key": KEY, "default_proxy": PROXY})
        self.guard = Guard(self._reach, KEY)
        self.reached: list[Scope] = []
        self.call(
            "POST",
            "/api/rollouts",
            KEY,
            [{"rollout_id": OWN, "input": {}}, {"rollout_id": OTHER, "input": {}}],
        )

    async def _reach(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(scope)
        await asyncio.sleep(0)  # an application may let others run first
        await self.application(scope, receive, send)

    def call(
        self, method: str, path: str | bytes, token: str | Headers, body: Any = None, query: bytes = b""
    ) -> int:
        """Status of a request, with a bearer token or with given headers."""
        return self.answer(method, path, token, body, query)[0]

    def answer(
        self, method: str, path: str | bytes, token: str | Headers, body: Any = None, query: bytes = b""
    ) -> tuple[int, Any]:
        """Status and JSON of a request."""
        raw = path.encode() if isinstance(path, str) else path
        headers = [(b"authorization", f"Bearer {token}".encode())] if isinstance(token, str) else token
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": raw.decode("latin-1"),
            "raw_path": raw,
            "root_path": "",
            "query_string": query,
            "headers": [*headers, (b"content-type", b"application/json")],
        }
        self.reached.clear()
        sent = asyncio.run(exchange(self.guard, scope, [data[:10], data[10:]]))
        text = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(text) if text else None

    def state(self, state: str, rollout_id: str = OWN, attempt: str | None = None) -> None:
        """Say that a rollout is in a state."""
        status = {"state": state, "last_attempt_id": attempt}
        assert self.call("PATCH", f"/api/rollouts/{rollout_id}", KEY, {"status": status}) == 200

    def kept(self) -> list[tuple[str, Any]]:
        """Types and data of the rollout's events."""
        return [(event.event_type, event.data) for event in _events[OWN].get("0", [])]


async def exchange(guard: Guard, scope: Scope, pieces: list[bytes]) -> list[Message]:
    """What a request whose body comes in pieces is answered with."""
    sent: list[Message] = []
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await guard(scope, receive, send)
    return sent


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    stores: tuple[Any, ...] = (_rollouts, _events, _terminal_order)
    for store in stores:
        store.clear()
    yield Gateway()
    for store in stores:
        store.clear()


def token(role: Role, rollout_id: str = OWN, attempt: str = "0") -> str:
    return mint(KEY, rollout_id, attempt, role)


MODEL, REPORT = token(Role.MODEL), token(Role.REPORT)


def test_the_key_passes_unchanged(gateway: Gateway) -> None:
    for headers in ([(b"authorization", f"Bearer {KEY}".encode())], [(b"x-api-key", KEY.encode())]):
        assert gateway.call("GET", "/api/rollouts", headers, query=b"state_in=queuing&limit=1") == 200
        (scope,) = gateway.reached
        assert (
            scope["query_string"] == b"state_in=queuing&limit=1"
            and scope["headers"][: len(headers)] == headers
        )
    assert gateway.call("GET", "/healthz", []) == 200
    assert gateway.call("GET", "/openapi.json", KEY) == 200


@pytest.mark.parametrize("path", ["/healthz/", "//healthz", "/docs", "/openapi.json", EVENTS, "/proxy/state"])
def test_nothing_else_passes_without_a_key(gateway: Gateway, path: str) -> None:
    for headers in (
        [],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", KEY.encode())],
        [(b"x-api-key", b"")],
    ):
        status, answer = gateway.answer("GET", path, headers)
        assert (status, gateway.reached, list(answer)) == (401, [], ["detail"])


def test_several_credentials_are_none(gateway: Gateway) -> None:
    shown = [(b"authorization", f"Bearer {REPORT}".encode()), (b"x-api-key", REPORT.encode())]
    shown += [(b"authorization", b"Bearer guess"), (b"x-api-key", b"guess")]
    for headers in permutations(shown, 2):
        assert (gateway.call("POST", EVENTS, list(headers), OUTCOME), gateway.reached) == (401, [])


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        *((method, EVENTS, b"") for method in ("GET", "HEAD", "PUT", "DELETE", "post")),
        *(("POST", EVENTS, query) for query in (b"x", b"x=1", b"&")),
        *(
            ("POST", path, b"")
            for path in (EVENTS.upper(), f"/{EVENTS}", f"{EVENTS}/", f"{EVENTS}%20", f"{EVENTS} ")
        ),
        *(
            ("POST", EVENTS.replace(*change), b"")
            for change in (("/0/", "/00/"), ("a1b", "%611b"), (OWN, OTHER))
        ),
        *(
            ("POST", path, b"")
            for path in (COMPLETIONS, "/proxy/pause", "/api/rollouts", f"/api/rollouts/{OWN}")
        ),
    ],
)
def test_a_report_has_one_address(gateway: Gateway, method: str, path: str, query: bytes) -> None:
    status, answer = gateway.answer(method, path, REPORT, OUTCOME, query)
    assert (status, gateway.reached, gateway.kept()) == (403, [], [])
    assert answer == {"detail": f"a report token of this rollout is good for POST {EVENTS} alone"}


def test_a_rollout_asks_and_reports(gateway: Gateway) -> None:
    # 503: the application is not started here, so its proxy has no policy; the end-to-end tests have one.
    assert gateway.call("POST", COMPLETIONS, MODEL, {"messages": []}) == 503
    (scope,) = gateway.reached
    assert dict(scope["headers"])[b"authorization"] == f"Bearer {KEY}".encode()
    gateway.state("running", attempt="0")
    status, answer = gateway.answer("POST", EVENTS, REPORT, OUTCOME)
    assert status == 200 and answer["event_type"] == "outcome" and answer["data"] == OUTCOME["data"]
    assert gateway.call("POST", EVENTS, REPORT, REWARD) == 200
    assert gateway.kept() == [("outcome", OUTCOME["data"]), ("reward", {"value": 1.0})]


def test_a_report_that_is_kept_is_answered_and_not_kept_again(gateway: Gateway) -> None:
    first = [gateway.answer("POST", EVENTS, REPORT, report) for report in (OUTCOME, REWARD)]
    again = [gateway.answer("POST", EVENTS, REPORT, report) for report in (OUTCOME, REWARD)]
    assert first == again and len(gateway.kept()) == 2


@pytest.mark.parametrize(
    "report",
    [
        {"event_type": "outcome", "data": {"outcome": "unsolved", "reward": 0.0}},
        *({"event_type": "reward", "data": {"value": value}} for value in (0.0, True, "1.0", None, [1.0])),
        {"event_type": "reward", "data": {"value": 1.0, "source": "agent"}},
        {"event_type": "reward", "data": {}},
        *({"event_type": kind, "data": {}} for kind in ("model_request", "Outcome", "", None, 1, {})),
    ],
)
def test_other_reports_after_the_outcome_are_refused(gateway: Gateway, report: dict[str, Any]) -> None:
    assert gateway.call("POST", EVENTS, REPORT, OUTCOME) == 200
    assert gateway.call("POST", EVENTS, REPORT, report) == 403
    assert gateway.kept() == [("outcome", OUTCOME["data"])]


@pytest.mark.parametrize("reward", [None, "1.0", True, 0.0])
def test_a_reward_is_the_outcomes(gateway: Gateway, reward: object) -> None:
    assert gateway.call("POST", EVENTS, REPORT, REWARD) == 403
    outcome = {"event_type": "outcome", "data": {"reward": reward}}
    assert gateway.call("POST", EVENTS, REPORT, outcome) == 200
    assert gateway.call("POST", EVENTS, REPORT, REWARD) == 403
    assert len(gateway.kept()) == 1


def test_another_attempts_outcome_earns_no_reward(gateway: Gateway) -> None:
    gateway.call("POST", f"/api/rollouts/{OWN}/attempt/1/events", KEY, OUTCOME)
    assert gateway.call("POST", EVENTS, REPORT, REWARD) == 403


@pytest.mark.parametrize("state", ["succeeded", "failed", "deleted"])
def test_tokens_end_with_their_rollout(gateway: Gateway, state: str) -> None:
    gateway.state("running")
    assert gateway.call("POST", EVENTS, REPORT, OUTCOME) == 200
    if state == "deleted":
        assert gateway.call("DELETE", f"/api/rollouts/{OWN}", KEY) == 204
    else:
        gateway.state(state)
    for path, shown, body in ((EVENTS, REPORT, OUTCOME), (EVENTS, REPORT, REWARD), (COMPLETIONS, MODEL, {})):
        status, answer = gateway.answer("POST", path, shown, body)
        assert (status, gateway.reached) == (403, [])
        assert ("does not know" if state == "deleted" else "has ended") in answer["detail"]


def test_tokens_end_with_their_attempt(gateway: Gateway) -> None:
    later = token(Role.REPORT, attempt="1")
    assert gateway.call("POST", EVENTS.replace("/0/", "/1/"), later, OUTCOME) == 403
    gateway.state("running", attempt="1")
    assert gateway.call("POST", EVENTS, REPORT, OUTCOME) == 403
    assert gateway.call("POST", EVENTS.replace("/0/", "/1/"), later, OUTCOME) == 200


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"\xff", b"{", b"[" * 100_000, b'{"event_type": "outcome"}', b'{"data": {}}'),
        *(
            b'{"event_type": "outcome", "data": %s}' % data
            for data in (b"[]", b'"x"', b'{"a": NaN}', b'{"a": 1e999}')
        ),
        b'{"event_type": "outcome", "data": {"a": "\\ud800"}}',
        b'{"event_type": "outcome", "data": {}, "rollout_id": "2c3d"}',
        b'{"event_type": "outcome", "data": %s1%s}'
        % (b'{"a":' * MAX_REPORT_DEPTH + b"[", b"]" + b"}" * MAX_REPORT_DEPTH),
    ],
)
def test_malformed_reports_are_refused(gateway: Gateway, body: bytes) -> None:
    assert gateway.call("POST", EVENTS, REPORT, body) == 400
    assert gateway.reached == [] and gateway.kept() == []


def test_what_is_kept_can_be_read(gateway: Gateway) -> None:
    odd = {"number": 10**4000, "text": "\0\x7f\u2028é😀", "": {"a": [[[[[1e308]]]]]}, "reward": -0.0}
    assert gateway.call("POST", EVENTS, REPORT, {"event_type": "outcome", "data": odd}) == 200
    status, events = gateway.answer("GET", f"/api/rollouts/{OWN}/events", KEY)
    assert status == 200 and events[0]["data"] == odd


def test_large_bodies_are_refused_before_they_are_read(gateway: Gateway) -> None:
    headers = [(b"authorization", f"Bearer {REPORT}".encode()), (b"content-length", b"1" * 30)]
    assert gateway.call("POST", EVENTS, headers, OUTCOME) == 413
    body = json.dumps(OUTCOME).encode() + b" " * MAX_REPORT_BYTES
    assert gateway.call("POST", EVENTS, REPORT, body) == 413
    assert gateway.kept() == []


def test_what_reaches_the_application_is_what_was_checked(gateway: Gateway) -> None:
    """Of two members with one name the parsers of Python take the last; another one could take the first."""
    body = b'{"event_type": "model_request", "event_type": "outcome", "data": {"reward": 1}, "data": {"reward": 0}}'
    assert gateway.call("POST", EVENTS, REPORT, body) == 200
    assert gateway.kept() == [("outcome", {"reward": 0})]


@pytest.mark.parametrize("race", range(4))
def test_outcomes_at_the_same_moment(gateway: Gateway, race: int) -> None:
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": EVENTS,
        "raw_path": EVENTS.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {REPORT}".encode())],
    }
    bodies = [
        json.dumps({"event_type": "outcome", "data": {"reward": number}}).encode() for number in range(8)
    ]

    async def all_at_once() -> list[list[Message]]:
        pieces = [[body[:number], body[number:]] for number, body in enumerate(bodies, start=race)]
        return await asyncio.gather(*(exchange(gateway.guard, {**scope}, both) for both in pieces))

    statuses = sorted(sent[0]["status"] for sent in asyncio.run(all_at_once()))
    assert statuses == [200] + [403] * 7 and len(gateway.kept()) == 1


def test_a_refusal_is_logged_without_the_token(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.call("DELETE", f"/api/rollouts/{OTHER}", MODEL)
    gateway.call("GET", b"/\xff\n" + b"x" * 1000, "guess")
    said = capsys.readouterr().out
    for part in ("Request refused", OWN, "DELETE", f"/api/rollouts/{OTHER}", "403", "401", "\\\\xff"):
        assert part in said, said
    assert MODEL.rpartition(".")[2] not in said and "guess" not in said and len(said) < 2000


PIECES = [
    *("/", "//", "/.", "/..", "%2f", "%2e%2e", "\\", "?", "#", ";", "%00", " ", "é", "\n", ".", "~"),
    *(
        "api",
        "rollouts",
        "terminal",
        "models",
        "proxy",
        "rollout",
        "pause",
        "resume",
        "state",
        "attempt",
        "events",
    ),
    *(
        "mode",
        "train",
        "val",
        "openai",
        "v1",
        "chat",
        "completions",
        "docs",
        "openapi.json",
        "healthz",
        "API",
    ),
    *(
        OWN,
        OTHER,
        "0",
        "1",
        "/events",
        "/attempt/0",
        f"/api/rollouts/{OWN}",
        f"/proxy/rollout/{OWN}/attempt/0",
    ),
    *(
        "/mode/train",
        "/openai/v1",
        "/chat/completions",
        EVENTS,
        COMPLETIONS,
        COMPLETIONS.replace("train", "val"),
    ),
]
SPELLINGS = st.sampled_from([EVENTS, COMPLETIONS]).flatmap(
    lambda path: st.just(path) | st.sampled_from(PIECES).flatmap(lambda piece: insertions(path, piece))
)
PATHS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=10).map("".join) | SPELLINGS
METHODS = st.sampled_from(
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post"]
)


def insertions(path: str, piece: str) -> st.SearchStrategy[str]:
    """The path with a piece put in anywhere, or with a piece of it left out."""
    return st.tuples(st.integers(0, len(path)), st.integers(0, 3)).map(
        lambda cut: path[: cut[0]] + piece + path[cut[0] + cut[1] :]
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=METHODS,
    path=PATHS,
    role=st.sampled_from(Role),
    query=st.sampled_from([b"", b"x=1", b"state_in=running"]),
    body=st.sampled_from(
        [OUTCOME, REWARD, {"messages": []}, {"event_type": "model_request", "data": {}}, [], None]
    ),
)
def test_no_request_with_a_token_reaches_more_than_its_calls(
    gateway: Gateway, method: str, path: str, role: Role, query: bytes, body: Any
) -> None:
    shown = MODEL if role is Role.MODEL else REPORT
    status = gateway.call(method, path.encode(errors="replace"), shown, body, query)
    allowed = EVENTS if role is Role.REPORT else COMPLETIONS
    if gateway.reached or status == 200:
        assert (method, path, query) == ("POST", allowed, b"") or (method, path) == ("GET", "/healthz")
    assert {kind for kind, _ in gateway.kept()} <= {"outcome", "reward"} and not _events[OTHER]
    assert set(_rollouts) == {OWN, OTHER}
