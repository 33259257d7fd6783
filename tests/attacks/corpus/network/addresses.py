"""Connects to addresses in the internet, in private networks and of cloud metadata, over IPv4 and IPv6."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                """
import socket
for host, port in (("1.1.1.1", 443), ("10.0.0.1", 80), ("192.168.0.1", 80), ("172.17.0.1", 2375),
                   ("169.254.169.254", 80), ("2606:4700:4700::1111", 443), ("fe80::1", 80)):
    try:
        socket.create_connection((host, port), 2)
        print("GAINED", host)
    except OSError:
        pass
"""
            )
        ),
    )
)
