"""Tokens of a rollout: what its agent has in the place of the run's key.

A token names a role, a rollout and an attempt, and ends with their HMAC-SHA256 under the run's key. So whoever
starts rollouts and whoever checks tokens share the key and nothing else, and no list of tokens is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PREFIX = "ls"


class Role(StrEnum):
    """What a token is good for."""

    MODEL = "model"
    """Completions of its rollout."""
    REPORT = "report"
    """The outcome of its rollout and then its reward, once each."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a genuine token says."""

    role: Role
    rollout_id: str
    attempt: str


def mint(key: str, rollout_id: str, attempt: str, role: Role) -> str:
    """Return the token of a role in an attempt of a rollout.

    Raise ValueError for ids that are not letters, digits, `-` and `_`: the gateway puts them into paths.
    """
    for name in (rollout_id, attempt):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no id of a rollout or attempt: letters, digits, - and _ make one")
    return f"{_PREFIX}.{role.value}.{rollout_id}.{attempt}.{_signature(key, rollout_id, attempt, role)}"


def read(key: str, token: str) -> Grant | None:
    """Return what a token grants; None unless it was minted with this key."""
    parts = token.split(".")
    if len(parts) != 5 or parts[0] != _PREFIX or parts[1] not in tuple(Role):
        return None
    role, rollout_id, attempt = Role(parts[1]), parts[2], parts[3]
    expected = _signature(key, rollout_id, attempt, role)
    if not hmac.compare_digest(expected.encode(), parts[4].encode(errors="replace")):
        return None
    return Grant(role, rollout_id, attempt)


def _signature(key: str, rollout_id: str, attempt: str, role: Role) -> str:
    message = json.dumps(["lightning-smith token", role.value, rollout_id, attempt])
    return hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()
