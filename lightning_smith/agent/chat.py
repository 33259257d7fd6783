"""The policy as a rollout sees it: an OpenAI chat endpoint behind the gateway, or a script.

Standard library only, though the fork server imports the agent once. Measured with `openai` 3.57, whose client was made
and had asked once before the fork: a rollout of three turns takes 102 ms of processor time instead of 69 in agent,
controller and gateway, and each start of a controller 0.8 s more. That is 7 % of the miniature with its 3,260 rollouts.
Half of it is the end of the process, which clears 600 more modules; a reply takes 2 ms instead of 0.3.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from lightning_smith.core.errors import UserError
from lightning_smith.core.text import encodable

NOT_TEXT = "not_text"
"""Key of a choice, set by the gateway, whose content has U+FFFD for what UTF-8 cannot encode."""


Message = dict[str, Any]
"""`role` and `content`; what else is in it is not sent."""


REQUEST_TIMEOUT_S = 600.0
RETRY_WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Waits between attempts, 30 s in all: what a gateway or an inference server takes to start again."""
MAX_PAUSE_S = 3600.0

_CONTEXT_FULL = re.compile(
    r"context (length|window|is \d)|max_model_len|maximum model length|prompt is too long"
    r"|'max_tokens'.* is too large",
    re.IGNORECASE,
)
"""How inference servers say with a 400 that a conversation does not fit; other 400s are a wrong request."""


class ModelError(UserError):
    """The policy could not be asked; says nothing about it."""


class ContextOverflowError(Exception):
    """The conversation does not fit into the policy's context any more."""


@dataclass(frozen=True)
class Reply:
    """One answer of the policy."""

    content: str
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    wall_s: float = 0.0
    """Seconds from the request to the answer, waits included."""
    paused_s: float = 0.0
    """Seconds of that in which it waited for a gateway that was paused, restarting or out of order."""
    is_text: bool = True
    """False if the policy said something that UTF-8 cannot encode, which is U+FFFD in `content`."""


class Model(Protocol):
    """Something that continues a conversation."""

    def reply(self, messages: list[Message]) -> Reply:
        """Raise ModelError, or ContextOverflowError."""
        ...


class ScriptedModel:
    """Says given replies one after the other; ModelError when they have run out."""

    def __init__(self, replies: Iterable[str]) -> None:
        self._replies = iter(list(replies))

    def reply(self, messages: list[Message]) -> Reply:
        content = next(self._replies, None)
        if content is None:
            raise ModelError("the scripted replies have run out: end them with the submission")
        return Reply(encodable(content), finish_reason="stop", is_text=encodable(content) == content)


class ChatModel:
    """Chat completions at `<url>/chat/completions`.

    Args:
        url: base address of the API, ending in /v1 as a rule.
        key: bearer token; empty for none.
        model: name of the policy.
        seed: sent with every request, so that a rollout can be run again.
        max_tokens: of one reply.
        extra: more fields of the request.
        sleep: waits for seconds between attempts.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        model: str,
        seed: int,
        max_tokens: int,
        extra: dict[str, Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise UserError(
                f"{url!r} is no address of an endpoint: give one such as http://127.0.0.1:8000/v1"
            )
        self._service = JsonService(key, sleep=sleep)
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._fields = {**(extra or {}), "model": model, "seed": seed, "max_tokens": max_tokens}

    def reply(self, messages: list[Message]) -> Reply:
        started_s = time.monotonic()
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        answer = self._service.post(self._url, {**self._fields, "messages": plain})
        if answer.status == 400 and _CONTEXT_FULL.search(answer.text):
            raise ContextOverflowError(answer.text[:300])
        body = answer.json()
        try:
            choice, usage = body["choices"][0], body.get("usage") or {}
            said = choice["message"].get("content") or ""
            content = encodable(said)
            return Reply(
                content=content,
                finish_reason=choice.get("finish_reason"),
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
                wall_s=time.monotonic() - started_s,
                paused_s=answer.paused_s,
                is_text=content == said and not choice.get(NOT_TEXT),
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise ModelError(f"the policy's answer is no chat completion: {answer.text[:200]!r}") from None


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    url: str
    status: int
    text: str
    paused_s: float

    def json(self) -> Any:
        """Return the body of a success. Raise ModelError for any other status and for a body that is no JSON."""
        if not 200 <= self.status < 300:
            raise ModelError(f"{self.url} answered {self.status}: {self.text[:300]}")
        try:
            return json.loads(self.text)
        except ValueError:
            raise ModelError(f"{self.url} answered with no JSON: {self.text[:200]!r}") from None


class JsonService:
    """Posts JSON over connections that stay open, one a host.

    Waits as long as a paused gateway asks (429 or 503 with Retry-After). Tries again after another 429, a 5xx
    or a broken connection, as while a gateway restarts, and raises ModelError when that does not help.
    """

    def __init__(
        self,
        key: str,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        waits_s: tuple[float, ...] = RETRY_WAITS_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._key, self._timeout_s, self._waits_s, self._sleep = key, timeout_s, waits_s, sleep
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def post(self, url: str, body: dict[str, Any]) -> Answer:
        """Return the answer, whatever its status below 500; 429 only if it stays that."""
        data = json.dumps(body).encode()
        paused_s = 0.0
        waits = list(self._waits_s)
        while True:
            try:
                status, pause_s, text = self._send(url, data)
            except (OSError, http.client.HTTPException) as error:
                if not waits or isinstance(error, TimeoutError):
                    raise ModelError(f"{url} cannot be reached: {type(error).__name__} {error}") from None
                wait_s = waits.pop(0)
            else:
                if status in (429, 503) and pause_s is not None and paused_s < MAX_PAUSE_S:
                    wait_s = pause_s
                elif (status == 429 or status >= 500) and waits:
                    wait_s = waits.pop(0)
                else:
                    return Answer(url, status, text, paused_s)
            self._sleep(wait_s)
            paused_s += wait_s

    def _send(self, url: str, data: bytes) -> tuple[int, float | None, str]:
        """Status, seconds of Retry-After (None if absent) and body of one attempt."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        kept = self._connections.pop(parts.netloc, None)
        if kept is not None:
            try:
                return self._exchange(kept, parts.netloc, target, data, headers)
            except (ConnectionError, http.client.BadStatusLine):
                kept.close()  # the server had closed it while a command ran: it has not read the request
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        fresh = kinds[parts.scheme](parts.netloc, timeout=self._timeout_s)
        return self._exchange(fresh, parts.netloc, target, data, headers)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        host: str,
        target: str,
        data: bytes,
        headers: dict[str, str],
    ) -> tuple[int, float | None, str]:
        connection.request("POST", target, data, headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        self._connections[host] = connection
        after = response.getheader("Retry-After")
        pause_s = (
            max(0.1, float(after)) if after is not None and after.replace(".", "", 1).isdigit() else None
        )
        return response.status, pause_s, text
