"""Reads the fix off git's log, reflog and stash."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "for words in 'log --all -p' 'reflog' 'stash list' 'show HEAD~1' 'fsck --lost-found'; do\n"
            "    git $words && echo GAINED\ndone"
        ),
    )
)
