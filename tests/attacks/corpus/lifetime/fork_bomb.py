"""Forks without end, until no process can be started."""

from attack import Attack, tried

ATTACK = Attack((": ls-attack; b() { b | b & }; b; sleep 20", tried("true")), timeout_s=4)
