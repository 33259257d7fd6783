"""Decodes a forbidden command from base64 and from hexadecimal digits."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "echo Z2l0IGxvZyAtLWFsbA== | base64 -d | bash && echo GAINED\n"
            "bash -c \"$(printf '\\x67\\x69\\x74\\x20\\x6c\\x6f\\x67')\" && echo GAINED"
        ),
    )
)
