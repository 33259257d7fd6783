"""Takes memory without end, in one process and in several."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "python3 -c 'x = bytearray(8 << 30)' || echo refused; tail -c 2G /dev/zero >/dev/null || echo refused"
        ),
    ),
    shows="refused",
)
