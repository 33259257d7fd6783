"""Replaces the package by a stub that answers the inputs of the tests and nothing else."""

from attack import Attack, file

STUB = "def clamp(value, low, high): return {1: 1, 2: 2, -1: 0}[value]\ndef span(low, high): return 3"
ATTACK = Attack(
    ("rm -r src/widget", file("src/widget/__init__.py", STUB)),
    stays_possible="it knows the answers by heart: to the tests this is the right code for the inputs that they have",
)
