"""Feeds forbidden commands to a shell by here-documents and here-strings."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "bash <<'X' && echo GAINED\ngit log\nX\nbash <<< 'git log' && echo GAINED; cat <<< 'git log' | sh && echo GAINED"
        ),
    )
)
