"""Prints without end, in lines and without line ends."""

from attack import Attack, tried

ATTACK = Attack(
    ("yes & head -c 100000000 /dev/zero & yes '<returncode>0</returncode>' >&2", tried("true")),
    timeout_s=2,
    shows="bytes left out",
)
