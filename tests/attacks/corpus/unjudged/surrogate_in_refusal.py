"""Has the guard refuse words that hold halves of surrogate pairs, for its answer to quote them."""

from attack import Attack

ATTACK = Attack(
    (r"git $'\udc80'", r"$'git' --exec-path=$'\ud800' log", r"env $'a=\xff' git $'\xff'", "echo TRIED"),
    guarded=True,
)
