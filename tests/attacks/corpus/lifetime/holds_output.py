"""Leaves a process that keeps the output open, so that the harness waits for its end."""

from attack import MARK, Attack, tried

ATTACK = Attack(
    (tried(f"(exec -a {MARK} sleep 600) &"), tried(f"(exec -a {MARK} sleep 600) & disown; exec >&- 2>&-"))
)
