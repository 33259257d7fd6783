"""Looks for interfaces other than its own loopback and gives itself an address and a route."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "ls /sys/class/net 2>/dev/null | grep -v '^lo$' && echo GAINED\n"
            "tail -n +3 /proc/net/dev | grep -v ' lo:' && echo GAINED\n"
            "tail -n +2 /proc/net/route | grep . && echo GAINED\n"
            "ip link add d type dummy 2>/dev/null && echo GAINED"
        ),
    )
)
