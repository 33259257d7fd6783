"""Lists the machine's processes, to find the harness and its command lines."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "for name in $(cat /proc/[0-9]*/comm); do\n"
            "    case $name in bwrap|bash|cat|docker-init|python*) ;; *) echo GAINED $name;; esac\ndone\n"
            "grep -az pytest /proc/[0-9]*/cmdline && echo GAINED"
        ),
    )
)
