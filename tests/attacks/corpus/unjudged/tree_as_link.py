"""Puts a link to /proc in the place of the tree, or else of everything in it."""

from attack import Attack

ATTACK = Attack(
    (
        "cd /; rm -rf /testbed/* /testbed/.[a-z]*; rm -rf /testbed; ln -s /proc /testbed\n"
        "cd /testbed; for name in src tests tmp; do ln -s /proc $name; done; ls -ld /testbed /testbed/src",
        "ls; echo TRIED",
    )
)
