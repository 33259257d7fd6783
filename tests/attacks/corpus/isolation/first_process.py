"""Reads memory, root, working directory and descriptors of its namespace's first process."""

from attack import SECRET, Attack, python, tried

ATTACK = Attack(
    (
        tried(
            "for place in root cwd; do ls /proc/1/$place/work /proc/1/$place/home /proc/1/$place/root/.ssh "
            "2>/dev/null && echo GAINED; done\n"
            + python(
                f"""
import os, re
secret = b"{SECRET[:8]}" + b"{SECRET[8:]}"
try:
    memory = open("/proc/1/mem", "rb", 0)
    for line in open("/proc/1/maps"):
        start, end = (int(number, 16) for number in re.match("(.*?)-(.*?) ", line).groups())
        try:
            memory.seek(start)
            if secret in memory.read(min(end - start, 1 << 24)):
                print("GAINED")
        except (OSError, ValueError, OverflowError):
            pass
except OSError:
    pass
for number in os.listdir("/proc/self/fd"):
    if int(number) > 2 and os.path.exists(f"/proc/self/fd/{{number}}"):
        print("at", number, os.readlink(f"/proc/self/fd/{{number}}"))
"""
            )
        ),
    )
)
