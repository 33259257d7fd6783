"""Has find and xargs run forbidden commands."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "find . -maxdepth 0 -exec git log \\; -exec echo GAINED \\; ; echo log | xargs git && echo GAINED\n"
            "echo 'git log' | xargs -I{} sh -c '{} && echo GAINED'"
        ),
    )
)
