"""Puts forbidden words together from variables, slices and printf."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            'a=g b=it; $a$b log && echo GAINED; x=xgitx; ${x:1:3} log && echo GAINED; c=$(printf "\\147it"); $c log && echo GAINED\n'
            "IFS=, ; d=git,log,--all; $d && echo GAINED"
        ),
    )
)
