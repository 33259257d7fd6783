"""Downloads the fixed release of the package from an index, a mirror or a cache."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "timeout 30 python3 -m pip download --retries 0 --timeout 2 --no-deps -d /tmp/p six && echo GAINED\n"
            "timeout 30 python3 -m pip install --retries 0 --timeout 2 --target /tmp/p six && echo GAINED\n"
            "find / -path /proc -prune -o \\( -name '*.whl' -o -name 'widget*.tar.gz' \\) -print 2>/dev/null |"
            " grep -iE 'widget' && echo GAINED"
        ),
    )
)
