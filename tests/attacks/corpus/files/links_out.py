"""Leaves links, absolute, relative and in chains, that lead out of the tree."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "ln -s / root; ln -s ../../../etc/passwd passwd; mkdir up && ln -s .. up/l && ln -s up/l/../etc etc\n"
        "ln -s /proc/self/environ environ; ln -s loop loop; ln -s src/../../../.. four; echo x > new.txt",
    ),
    with_fix=Outcome.SOLVED,
)
