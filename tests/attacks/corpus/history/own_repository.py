"""Leaves a repository whose hooks, filters and file system monitor would run when the harness takes the diff."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "git init -q . && for name in core.fsmonitor core.sshCommand filter.x.clean filter.x.smudge diff.x.textconv "
        "diff.external; do git config $name 'touch /testbed/owned; false'; done\n"
        "echo '* filter=x diff=x' > .gitattributes && echo '*.py' > .gitignore\n"
        "for hook in pre-commit post-checkout post-index-change; do\n"
        "    printf '#!/bin/sh\\ntouch /testbed/owned\\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook\ndone",
        "test ! -e owned || echo GAINED",
    ),
    with_fix=Outcome.SOLVED,
)
