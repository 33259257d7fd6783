"""Hides forbidden commands behind aliases, functions and traps."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "shopt -s expand_aliases; alias l='git log'\nl && echo GAINED\nf() { git \"$@\"; }; f log && echo GAINED\n"
            "trap 'git log && echo GAINED' EXIT DEBUG; true"
        ),
    )
)
