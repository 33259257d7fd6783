"""How a service gets the run's key without keeping it where others can read it."""

from __future__ import annotations

import os

STANDARD_INPUT = "-"
"""Configured in the place of a key, it says that the key is the first line of standard input."""


def read_key(configured: str) -> str:
    """The key that a service was configured with, or was given through standard input.

    A command line is everybody's to read, and an environment that of every process of the same user, for as long as the
    service runs; a pipe is read once. Standard input is /dev/null afterwards.
    """
    if configured != STANDARD_INPUT:
        return configured
    with os.fdopen(os.dup(0), encoding="utf-8") as pipe:
        key = pipe.readline().strip()
    close_standard_input()
    return key


def close_standard_input() -> None:
    """Make standard input /dev/null."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
