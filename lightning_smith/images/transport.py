"""How a registry is reached: over HTTPS, and otherwise only as the Docker daemon reaches it.

    transport = Transport(timeout_s=60, insecure=InsecureHosts(daemon.api.info()))
    answer = transport.get("host:5000", "/v2/acme/x/manifests/latest", headers)

The daemon has a list of registries that it may ask without a trusted certificate, or over HTTP (`insecure-registries`
in its configuration). That list decides here as well, in the daemon's order: HTTPS first, then HTTP. Registries of this
machine are asked over HTTP.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from lightning_smith.core.errors import UserError
from lightning_smith.images.insecure import InsecureHosts, name_of

_FIRST_CONNECT_S = 10.0
"""How long a listed registry of which the scheme is not known yet may take to answer HTTPS."""
_MOST_REDIRECTS = 5
_NO_TLS = re.compile(r"HTTP response to HTTPS client|first record does not look like a TLS handshake")
_NO_TRUST = re.compile(r"x509: .*")


class TrustError(UserError):
    """A registry does not speak HTTPS, or has a certificate that nothing here trusts; no other try helps."""


class Transport:
    """Asks registries; usable from several threads. Raises httpx.HTTPError where there is no answer, or TrustError."""

    def __init__(self, timeout_s: float, insecure: InsecureHosts | None = None) -> None:
        self.insecure = InsecureHosts() if insecure is None else insecure
        self._trusting = httpx.Client(timeout=timeout_s, verify=False)
        self._client = httpx.Client(timeout=timeout_s)
        self._first = httpx.Timeout(timeout_s, connect=min(timeout_s, _FIRST_CONNECT_S))
        self._schemes: dict[str, str] = {}

    def close(self) -> None:
        self._trusting.close()
        self._client.close()

    def get(self, host: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """Return the answer of a registry, redirects followed."""
        if (scheme := self._scheme(host)) is not None:
            return self._follow(f"{scheme}://{host}{path}", headers)
        try:
            answer = self._follow(f"https://{host}{path}", headers, timeout=self._first)
        except httpx.TransportError:
            answer = self._follow(f"http://{host}{path}", headers)
            self._schemes[host] = "http"
        else:
            self._schemes[host] = "https"
        return answer

    def token(self, url: str, **question: Any) -> httpx.Response:
        """Return the answer of the service that gives tokens for a registry; `question` as for httpx's `request`."""
        host = httpx.URL(url).netloc.decode()
        self._refuse_plain(url, host)
        return self._of(host).request("POST" if "data" in question else "GET", url, **question)

    def _scheme(self, host: str) -> str | None:
        if name_of(host) == "localhost" or name_of(host).startswith("127."):
            return "http"
        return self._schemes.get(host) if host in self.insecure else "https"

    def _of(self, host: str) -> httpx.Client:
        return self._trusting if host in self.insecure else self._client

    def _follow(self, url: str, headers: Mapping[str, str], **options: Any) -> httpx.Response:
        asked = httpx.URL(url)
        for _ in range(_MOST_REDIRECTS):
            host = asked.netloc.decode()
            self._refuse_plain(str(asked), host)
            try:
                answer = self._of(host).get(asked, headers=headers, **options)
            except httpx.ConnectError as error:
                if host not in self.insecure and (refusal := _distrust(host, error)):
                    raise refusal from None
                raise
            if not answer.has_redirect_location:
                return answer
            asked = answer.url.join(answer.headers["Location"])
            if asked.netloc.decode() != host:
                headers = {key: value for key, value in headers.items() if key != "Authorization"}
        raise httpx.TooManyRedirects(f"{url} redirects more than {_MOST_REDIRECTS} times")

    def _refuse_plain(self, url: str, host: str) -> None:
        if not url.startswith("https://") and host not in self.insecure:
            raise TrustError(f"a registry sends its client to {url}, which is not HTTPS: {_list_it(host)}")


def distrust(host: str, text: str) -> TrustError | None:
    """Return the sentence for a text of the daemon that says that it cannot trust a registry; None for any other
    text.
    """
    if _NO_TLS.search(text):
        return TrustError(
            f"the registry {host} speaks HTTP, and the Docker daemon asks it over HTTPS: {_list_it(host)}"
        )
    if reason := _NO_TRUST.search(text):
        return TrustError(
            f"the registry {host} has a certificate that the Docker daemon does not trust ({reason[0]}): put that of "
            f"its authority at /etc/docker/certs.d/{host}/ca.crt, or {_list_it(host)}"
        )
    return None


def _distrust(host: str, error: BaseException) -> TrustError | None:
    """Return the sentence for an error of TLS that another try would meet again; None for any other error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return TrustError(
            f"the registry {host} has a certificate that is not trusted here ({cause.verify_message}): set "
            f"SSL_CERT_FILE to a file with that of its authority, or {_list_it(host)}"
        )
    if cause is None or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    return TrustError(
        f"the registry {host} does not speak HTTPS ({cause.reason or cause}), and the Docker daemon does not list it "
        f"as one to ask over HTTP: {_list_it(host)}"
    )


def _list_it(host: str) -> str:
    return f'add "{host}" to insecure-registries in /etc/docker/daemon.json and reload the daemon, or give it HTTPS'
