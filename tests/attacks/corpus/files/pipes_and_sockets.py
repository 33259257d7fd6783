"""Leaves named pipes and sockets where the harness would read files, so that it waits for ever."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "mkfifo pipe src/pipe.py README.new tests/pipe; rm README && mkfifo README\n"
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
    ),
    with_fix=Outcome.SOLVED,
)
