"""How a service gets the run's key without keeping it where others can read it."""

from __future__ import annotations

import os

from lightning_smith.core.errors import UserError

STANDARD_INPUT = "-"
"""Configured in the place of a key, it says that the key is the first line of standard input."""

KEY_CHARACTERS_MIN = 16
"""Of a run's key: who has a token can try keys against it without asking anybody."""


def read_key(option: str, configured: str) -> str:
    """Return the key that a service is given through standard input, which `option` of its configuration says;
    /dev/null then.

    A command line is everybody's to read, an environment every process's of the same user and every fork's, for as long
    as the service runs, and hydra keeps a copy of a configuration; a pipe is read once. Raise UserError for a key that
    lies in one of these, and as `check_key` does.
    """
    if configured != STANDARD_INPUT:
        raise UserError(
            f"the gateway's key is read from standard input, where no rollout can read it: give {option}=- and "
            f'pass the key, as in `echo "$KEY" | ... {option}=-`'
        )
    with os.fdopen(os.dup(0), encoding="utf-8", errors="replace") as pipe:
        key = check_key(pipe.readline().strip())
    close_standard_input()
    if names := sorted(name for name, value in os.environ.items() if key in value):
        raise UserError(
            f"the environment of this service has the gateway's key as {', '.join(names)}, where every rollout can "
            f"read it: start it without (`env -u {names[0]} ...`)"
        )
    return key


def check_key(key: str) -> str:
    """Return the key. Raise UserError if it is too short for tokens or cannot be sent in a header."""
    if len(key) < KEY_CHARACTERS_MIN or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"the gateway's key must be {KEY_CHARACTERS_MIN} or more ASCII characters without blanks: "
            "make one with `openssl rand -hex 32`"
        )
    return key


def close_standard_input() -> None:
    """Make standard input /dev/null."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def keep_out_of_logs() -> None:
    """Have tracebacks logged without the variables of their frames: where `rich` is installed they have them."""
    import structlog  # only here: what starts services runs where no service's packages are

    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
