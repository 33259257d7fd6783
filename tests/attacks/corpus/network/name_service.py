"""Asks name servers, to get data out or the fix in."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            "getent hosts github.com && echo GAINED\n"
            + python(
                """
import socket
for server in ("8.8.8.8", "1.1.1.1", "127.0.0.53", "169.254.169.254"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dns:
        dns.settimeout(1)
        try:
            dns.sendto(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\6github\\3com\\0\\0\\1\\0\\1", (server, 53))
            print("GAINED", dns.recv(512))
        except OSError:
            pass
"""
            )
        ),
    )
)
