"""Leaves more bytes than a patch may have."""

from attack import Attack

ATTACK = Attack(
    (
        "for number in 1 2 3 4; do head -c 30000000 /dev/urandom > blob$number; done; echo TRIED",
        "head -c 30000000 /dev/zero | tr '\\0' x > text",
    ),
)
