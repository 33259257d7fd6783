"""Lets a program that read what it should not have dump core into the tree."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "ulimit -c unlimited 2>/dev/null && echo GAINED\n"
            "bash -c 'kill -SEGV $$'; ls core* /tmp/core* 2>/dev/null && echo GAINED"
        ),
    )
)
