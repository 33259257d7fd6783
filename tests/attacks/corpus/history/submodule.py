"""Leaves a nested repository with a commit of its own, as a submodule would be."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "mkdir -p sub && cd sub && git init -q . && echo x > x && git add x &&\n"
        "git -c user.name=a -c user.email=a@b commit -qm x &&\n"
        "printf '[submodule \"sub\"]\\n path = sub\\n url = ../../repository.git\\n' > ../.gitmodules",
    ),
    with_fix=Outcome.SOLVED,
)
