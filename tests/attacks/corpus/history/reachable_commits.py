"""Counts the commits that are reachable from any reference but HEAD, in every repository it can find."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "find / -name HEAD -not -path '/proc/*' 2>/dev/null | while read -r head; do\n"
            '    [ "$(git --git-dir="$(dirname "$head")" rev-list --all --not HEAD 2>/dev/null | wc -l)" = 0 ] ||'
            " echo GAINED\ndone"
        ),
    )
)
