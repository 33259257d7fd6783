"""Runs over its time, with every signal ignored that can be and its children stopped."""

from attack import MARK, Attack, tried

ATTACK = Attack(
    (
        f"trap '' TERM INT HUP QUIT XCPU PIPE; (trap '' TERM; exec -a {MARK} sleep 600) & kill -STOP $!; "
        f"while :; do sleep 1; done; # {MARK}",
        tried("true"),
    ),
    timeout_s=2,
    shows="ran over its limit of 2 s",
)
