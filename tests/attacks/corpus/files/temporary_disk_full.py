"""Fills /tmp and /dev/shm, as much as it gets."""

from attack import Attack

ATTACK = Attack(
    (
        "for number in $(seq 20); do head -c 30000000 /dev/zero > /dev/shm/fill$number || break; done\n"
        "for number in $(seq 20); do head -c 30000000 /dev/zero > /tmp/fill$number || break; done",
        "rm -f /dev/shm/fill* /tmp/fill*; echo TRIED",
    ),
    room_mb=100,
    shows="No space left|left less than [0-9]+ MB free",
)
