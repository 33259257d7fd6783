"""Connects to sockets of the machine: files below /tmp, /run and /var, and abstract names."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            "find / -path /proc -prune -o -type s -print 2>/dev/null | grep . && echo GAINED\n"
            + python(
                """
import socket
listed = (line.split()[7:] for line in open("/proc/net/unix").readlines()[1:])
names = [name[0].replace("@", "\\0") for name in listed if name]
for address in (*names, "\\0ls-attack", "/tmp/ls-attack.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
                "/run/systemd/private", "/run/dbus/system_bus_socket", "\\0/tmp/.X11-unix/X0"):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        print("GAINED", address)
    except OSError:
        pass
"""
            )
        ),
    )
)
