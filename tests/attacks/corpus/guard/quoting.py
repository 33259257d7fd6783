"""Writes forbidden words with quotes, backslashes and empty strings in them."""

from attack import Attack, tried

ATTACK = Attack(
    (tried('g\'\'it log && echo GAINED; \\g\\i\\t log && echo GAINED; "gi""t" reflog && echo GAINED'),)
)
