"""Nests words that start others, and brackets, deeper than the guard's reader could follow by calling itself."""

from attack import Attack

ATTACK = Attack(
    ("env " * 1000 + "true", "nohup " * 1000 + "git log", "$(" * 3000 + "true" + ")" * 3000, "echo TRIED"),
    guarded=True,
)
