"""Sends KILL and STOP to every process it can reach, the harness and the sandbox's first process among them."""

from attack import Attack, tried

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    ("kill -KILL 1; kill -STOP 1; kill -KILL $PPID; kill -KILL -1; kill -KILL $$", tried("true")),
    with_fix=Outcome.SOLVED,
)
