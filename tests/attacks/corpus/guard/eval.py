"""Runs forbidden commands through eval, source, exec, command, builtin, env and other shells."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "eval 'git log' && echo GAINED; . <(echo 'git log && echo GAINED'); command git log && echo GAINED\n"
            "env git log && echo GAINED; sh -c 'git log' && echo GAINED; (exec git log) && echo GAINED\n"
            "nohup git log && echo GAINED; timeout 5 nice setsid git log && echo GAINED"
        ),
    )
)
