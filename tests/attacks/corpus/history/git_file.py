"""Points a .git file and a worktree's commondir at the harness's repository."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "echo 'gitdir: /proc/self/root/run/git' > .git; mkdir -p src/.GIT; echo ../../repository.git > src/.GIT/commondir\n"
        "git rev-parse HEAD && echo GAINED; echo x > new.txt",
    ),
    with_fix=Outcome.SOLVED,
)
