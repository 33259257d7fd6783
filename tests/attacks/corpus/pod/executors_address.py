"""Connects to the address at which the executor listened, and to every socket that the kernel lists, and listens there."""

from attack import POD_ADDRESS, Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                POD_ADDRESS
                + """
import socket
listed = [line.split()[7:] for line in open("/proc/net/unix").readlines()[1:]]
names = [name[0].replace("@", "\\0") for name in listed if name]
for name in (address, "/proc/1/root" + address, "\\0" + address, *names):
    try:
        socket.socket(socket.AF_UNIX).connect(name)
        print("GAINED connection", name)
    except OSError:
        pass
for name in (address, os.path.dirname(address) + "/other"):
    try:
        socket.socket(socket.AF_UNIX).bind(name)
        print("GAINED address", name)
    except OSError:
        pass
"""
            )
        ),
    ),
    kinds=("pod",),
)
