"""Connects from a command to the ports on which the harness's own machine serves gateway and policy."""

import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from attack import GatewayAttack

from lightning_smith.sandbox.bwrap import Bwrap

CONNECT = """
import socket, sys
for port in sys.argv[1:]:
    for host in ("127.0.0.1", "localhost", "::1", "10.0.2.2", "host.docker.internal"):
        try:
            socket.create_connection((host, int(port)), 2)
            print("GAINED", host, port)
        except OSError:
            pass
print("TRIED")
"""


def run(stack) -> bool:
    """Whether a port was reached that can be reached from outside of the sandbox."""
    assert httpx.get(f"{stack.gateway_url}/healthz", trust_env=False).status_code == 200
    ports = [str(urlsplit(url).port) for url in (stack.gateway_url, stack.policy_url)]
    with tempfile.TemporaryDirectory() as tree:
        command = f"python3 - {' '.join(ports)} <<'END'\n{CONNECT}END"
        done = Bwrap.find().run(command, tree=Path(tree), environment={}, timeout_s=60)
    assert b"TRIED" in done.output, done.output
    return b"GAINED" in done.output


ATTACK = GatewayAttack(run)
