"""A small synchronous client of the Agent Lightning gateway: every endpoint that the workflow uses.

All calls may be repeated without harm (rollouts are created under ids chosen here), so a broken connection is
retried before it becomes an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from lightning_smith.core.errors import UserError

Row = dict[str, Any]
"""A JSON object of the gateway."""

_RETRY_WAITS_S = (0.2, 1.0)
"""Pauses before the second and third try of a call whose connection broke."""


@dataclass(frozen=True, slots=True)
class TerminalPage:
    """Rollouts that ended since a cursor: `{rollout_id, state, data_id, is_train}`, in order of their end.

    `next_after` is the cursor for the next call, `total` the number of rollouts that have ended so far.
    """

    items: list[dict[str, Any]]
    next_after: int
    total: int


class UnknownRolloutError(UserError):
    """A rollout was deleted, or the gateway was started anew (it keeps nothing)."""


class Gateway:
    """Client of one gateway; its methods raise UserError, naming gateway and log, if there is no answer."""

    def __init__(self, url: str, key: str = "", *, log: Path | None = None, timeout_s: float = 60.0) -> None:
        self.url, self.log = url.rstrip("/"), log
        # trust_env=False: a proxy of the user's environment must not see calls to 127.0.0.1.
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_s,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> bool:
        """Return whether the gateway answers; never raises for a gateway that is absent."""
        try:
            return self._http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def register_models(self, name: str, endpoints: Sequence[str], version: int = 0) -> None:
        """Serve `name` from these OpenAI base URLs (ending in /v1); a known one gets the new version."""
        models = [{"model": name, "endpoint": endpoint, "version": version} for endpoint in endpoints]
        self._call("POST", "/api/models", models)

    def create_rollouts(self, rollouts: Sequence[dict[str, Any]]) -> list[str]:
        """Queue rollouts, return their ids; each needs a `rollout_id`: a repeated call creates nothing."""
        if any("rollout_id" not in rollout for rollout in rollouts):
            raise ValueError("a rollout without rollout_id would be created twice by a repeated call")
        return [row["rollout_id"] for row in self._call("POST", "/api/rollouts", list(rollouts))]

    def terminal(self, after: int, limit: int = 1000) -> TerminalPage:
        """Rollouts that succeeded or failed since the cursor `after` (0: since the gateway started)."""
        page = self._call("GET", "/api/rollouts/terminal", params={"after": after, "limit": limit})
        return TerminalPage(page["items"], page["next_after"], page["total_terminal"])

    def terminal_cursor(self) -> int:
        """Return the cursor of now: `terminal` after it yields what ends from here on."""
        return self.terminal(after=2**31, limit=1).total

    def rollout(self, rollout_id: str) -> dict[str, Any]:
        """One rollout with its input, configuration and `status` (state, error_message)."""
        return self._call("GET", f"/api/rollouts/{rollout_id}")["rollout"]

    def list_rollouts(self, states: Iterable[str] = ("queuing", "running"), limit: int = 500) -> list[Row]:
        """Return whole rollouts in these states, oldest first."""
        return self._call("GET", "/api/rollouts", params={"state_in": list(states), "limit": limit})

    def events(self, rollout_id: str, *, event_type: str | None = None, triplet: bool = True) -> list[Row]:
        """Events of a rollout in order; `triplet` trims model requests to token ids and log-probabilities."""
        params = {"format": "triplet"} if triplet else {}
        if event_type is not None:
            params["event_type"] = event_type
        return self._call("GET", f"/api/rollouts/{rollout_id}/events", params=params)

    def delete(self, rollout_id: str) -> None:
        """Forget a rollout and its events; an unknown id is fine. It does not stop a rollout that runs."""
        self._call("DELETE", f"/api/rollouts/{rollout_id}")

    def pause(self, reason: str, retry_after_s: int = 1) -> dict[str, Any]:
        """Refuse new model requests with 429; those in flight go on (see `state`)."""
        return self._call("POST", "/proxy/pause", {"retry_after_seconds": retry_after_s, "reason": reason})

    def resume(self) -> dict[str, Any]:
        """Accept model requests again."""
        return self._call("POST", "/proxy/resume")

    def state(self) -> dict[str, Any]:
        """`{paused, retry_after_seconds, reason, inflight}`."""
        return self._call("GET", "/proxy/state")

    def _call(self, method: str, path: str, body: Any = None, params: dict[str, Any] | None = None) -> Any:
        response = self._send(method, path, body, params)
        if response.status_code == 401:
            raise UserError(f"the gateway at {self.url} refuses the key: set AGL_KEY to the one it was given")
        if response.status_code == 404 and path.startswith("/api/rollouts/"):
            raise UnknownRolloutError(f"the gateway at {self.url} does not know rollout {path.split('/')[3]}")
        if response.is_error:
            raise UserError(
                f"the gateway at {self.url} answered {response.status_code} to {method} {path}: "
                f"{response.text[:300]}{self._log_hint()}"
            )
        if response.status_code == 204:
            return None
        try:
            return response.json()
        except ValueError:
            raise UserError(
                f"{self.url} is no Agent Lightning gateway: {method} {path} gave no JSON"
            ) from None

    def _send(self, method: str, path: str, body: Any, params: dict[str, Any] | None) -> httpx.Response:
        if self._http.is_closed:
            raise UserError(f"the connection to the gateway at {self.url} was closed with its stage")
        for wait_s in (*_RETRY_WAITS_S, None):
            try:
                return self._http.request(method, path, json=body, params=params)
            except httpx.TransportError as error:
                if wait_s is None:
                    reason = f"{type(error).__name__}: {error}"
                    raise UserError(
                        f"the gateway at {self.url} does not answer ({reason}){self._log_hint()}"
                    ) from None
                time.sleep(wait_s)
        raise AssertionError("unreachable")

    def _log_hint(self) -> str:
        return f"; its log is {self.log}" if self.log else ""
