"""Takes all rights to the root folder and to everything in the tree away, its own and the harness's."""

from attack import Attack

ATTACK = Attack(
    ("echo 'x = 1' > src/new.py; chmod -R 000 *; chmod 000 /tmp /testbed; chmod 000 /", "echo TRIED"),
    shows="TRIED",
)
