"""Runs forbidden commands from Python, Perl, awk and make."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            'python3 -c \'import os; os.system("g" + "it log") or print("GAINED")\'\n'
            'perl -e \'system("git log") or print "GAINED\\n"\'; awk \'BEGIN { if (!system("git log")) print "GAINED" }\'\n'
            "printf 'x:\\n\\tgit log && echo GAINED\\n' | make -f - x"
        ),
    )
)
