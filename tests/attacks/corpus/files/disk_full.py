"""Fills the disk of its tree, as much as it gets."""

from attack import Attack

ATTACK = Attack(
    (
        "for number in $(seq 20); do head -c 30000000 /dev/zero > fill$number || break; done",
        "rm -f fill*; echo TRIED",
    ),
    room_mb=100,
    shows="left less than [0-9]+ MB free",
)
