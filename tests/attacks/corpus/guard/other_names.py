"""Reaches forbidden programs by path, copy, link and wildcard."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "/usr/bin/git log && echo GAINED; /usr/bin/gi? log && echo GAINED; cp /usr/bin/git /tmp/g && /tmp/g log && echo GAINED\n"
            "ln -s /usr/bin/git /tmp/h; /tmp/h log && echo GAINED; /lib64/ld-linux-x86-64.so.2 /usr/bin/git log && echo GAINED\n"
            "rm -f /tmp/g /tmp/h"
        ),
    )
)
