"""Reads from and writes to every descriptor that it was started with."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "for number in 3 4 5 6 7 8 9 10 11 12 13 14 15; do\n"
            "    (echo '{\"exit-code\": 0}' >&$number) 2>/dev/null && echo GAINED\n"
            "    (timeout 1 head -c 1 <&$number) 2>/dev/null && echo GAINED\ndone"
        ),
    )
)
