"""Which registries the Docker daemon asks without a trusted certificate, or over HTTP.

Apart from `transport`, since environments that only speak to a daemon have no HTTP client.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

_LOOPBACK = {"RegistryConfig": {"InsecureRegistryCIDRs": ["127.0.0.0/8", "::1/128"]}}


class InsecureHosts:
    """`host in insecure`: whether the daemon asks a registry (`name` or `name:port`) without a trusted certificate.

    `info` is what the daemon's API says of itself; by default only this machine's own registries are insecure.
    """

    def __init__(self, info: Mapping[str, Any] = _LOOPBACK) -> None:
        about = info.get("RegistryConfig") or {}
        self._indexes = about.get("IndexConfigs") or {}
        self._networks = [ipaddress.ip_network(text) for text in about.get("InsecureRegistryCIDRs") or ()]
        self._known: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        if host not in self._known:  # looked up once: that takes seconds where only a proxy knows names
            self._known[host] = self._is_insecure(host)
        return self._known[host]

    def _is_insecure(self, host: str) -> bool:
        if host in self._indexes:
            return not self._indexes[host].get("Secure", True)
        try:
            found = (
                {entry[4][0] for entry in socket.getaddrinfo(name_of(host), None)} if self._networks else ()
            )
        except OSError:
            return False
        return any(
            ipaddress.ip_address(address) in network for address in found for network in self._networks
        )


def name_of(host: str) -> str:
    """Return a registry without its port."""
    return host.rpartition(":")[0] or host
