"""What a registry says of an image before it is pulled: digest, platform and sizes.

    with Registries() as registries:
        about = registries.about("swebench/swesmith.x86_64.pypi_1776_boltons.d39cfd15")

Speaks the distribution API (OCI distribution specification 1.1) over HTTPS, or as the Docker daemon does
(`transport.py`). Credentials come from the user's Docker configuration, credential helpers included.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import docker.auth
import httpx
from docker.errors import DockerException

from lightning_smith.core.errors import UserError
from lightning_smith.images.insecure import InsecureHosts
from lightning_smith.images.transport import Transport
from lightning_smith.repositories.names import ImageRef

PLATFORM = ("linux", "amd64")
"""What SWE-smith's and the evaluation set's images are made for."""

HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
_INDEX = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT = ", ".join((*_INDEX, *_MANIFEST))
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 60.0
_TOO_MANY = 429


class RegistryError(UserError):
    """A registry's refusal."""

    def __init__(
        self, sentence: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        """HTTP status; None if there was no answer."""
        self.retry_after_s = retry_after_s
        """What the header Retry-After asked for."""

    @property
    def passing(self) -> bool:
        """Whether the same question may be answered later on."""
        return self.status is None or self.status == _TOO_MANY or self.status >= 500


class AbsentError(RegistryError):
    """There is no such repository or tag, or no right to see it: registries do not tell these apart."""


@dataclass(frozen=True)
class RemoteImage:
    """An image as a registry describes it."""

    name: str
    """Repository and tag, or digest, that were asked for."""
    repository: str
    digest: str
    """`sha256:<hex>` of what the tag names now: an index, or a manifest."""
    manifest_digest: str
    """`sha256:<hex>` of the manifest for linux/amd64; the same as `digest` where there is no index."""
    layers: tuple[tuple[str, int], ...]
    """Digest and compressed size (bytes) of each layer."""

    @property
    def compressed_bytes(self) -> int:
        return sum(size for _, size in self.layers)


def through_mirror(name: str, mirror: str | None) -> str:
    """Return the name of Docker Hub's image `name` at a mirror (`host[:port][/prefix]`); other hosts' stay."""
    if mirror is None or ImageRef.parse(name).host not in (None, HUB):
        return name
    return f"{mirror.rstrip('/')}/{name.removeprefix(HUB + '/')}"


class Registries:
    """Asks registries; a context manager, usable from several threads.

    `insecure` are those that the daemon may ask over HTTP, by default this machine's own.
    """

    def __init__(
        self,
        docker_config: str | None = None,
        timeout_s: float = _TIMEOUT_S,
        insecure: InsecureHosts | None = None,
    ) -> None:
        self._auth = docker.auth.load_config(docker_config)
        self._transport = Transport(timeout_s, insecure)
        self._tokens: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def credentials(self, name: str) -> dict[str, str] | None:
        """`username` and `password` (or `identitytoken`) of the user's Docker configuration for an image's host."""
        host = ImageRef.parse(name).host
        try:
            with self._lock:  # a credential helper is a program: one at a time
                return self._auth.resolve_authconfig(None if host in (None, HUB) else host)
        except DockerException as error:
            raise UserError(
                f"the credentials of {host or HUB} cannot be read ({error}): repair ~/.docker/config.json"
            ) from None

    def reach(self, repository: str) -> None:
        """Ask the registry of a repository for anything; RegistryError or TrustError if that is not possible."""
        ref = ImageRef.parse(repository)
        self._send(ref, "/v2/", {})

    def about(self, name: str) -> RemoteImage:
        """Describe an image.

        AbsentError if there is none, UserError if it is not for linux/amd64, RegistryError for the rest.
        """
        ref = ImageRef.parse(name)
        try:
            return self._read(name, ref)
        except (LookupError, TypeError, AttributeError, ValueError, httpx.InvalidURL) as error:
            raise RegistryError(
                f"{_place(ref)[0]} answers for {ref.repository} as no registry does ({type(error).__name__}: {error}): "
                "see whether this host is one, or whether something between changes what it sends"
            ) from None

    def _read(self, name: str, ref: ImageRef) -> RemoteImage:
        digest, document = self._manifest(ref, ref.digest or ref.tag or "latest")
        manifest_digest, manifest = digest, document
        if "manifests" in document:
            manifest_digest = _for_platform(name, document)
            _, manifest = self._manifest(ref, manifest_digest)
        else:
            self._check_platform(name, ref, manifest)
        layers = tuple((layer["digest"], int(layer["size"])) for layer in manifest.get("layers", ()))
        return RemoteImage(name, ref.repository, digest, manifest_digest, layers)

    def _manifest(self, ref: ImageRef, reference: str) -> tuple[str, dict[str, Any]]:
        answer = self._get(ref, f"manifests/{reference}")
        digest = "sha256:" + hashlib.sha256(answer.content).hexdigest()
        if reference.startswith("sha256:") and digest != reference:
            raise RegistryError(
                f"the registry of {ref.repository} answered {reference} with {digest}: something between changes "
                "what it sends"
            )
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict) or not ("manifests" in document or "layers" in document):
            raise RegistryError(
                f"{answer.url.host} answers for {ref.repository} with no manifest that Docker reads: see whether "
                "this host is a registry"
            )
        return digest, document

    def _check_platform(self, name: str, ref: ImageRef, manifest: Mapping[str, Any]) -> None:
        config = self._get(ref, f"blobs/{manifest['config']['digest']}").json()
        _refuse_platform(name, [(config.get("os", "linux"), config.get("architecture", ""))])

    def _get(self, ref: ImageRef, path: str) -> httpx.Response:
        host, repository = _place(ref)
        place = f"/v2/{repository}/{path}"
        headers = {"Accept": _ACCEPT}
        key = (host, repository)
        if key in self._tokens:
            headers["Authorization"] = self._tokens[key]
        answer = self._send(ref, place, headers)
        challenge = answer.headers.get("WWW-Authenticate", "")
        if answer.status_code == 401 and (authorization := self._authorize(ref, challenge)):
            self._tokens[key] = authorization
            answer = self._send(ref, place, {**headers, "Authorization": authorization})
        if answer.status_code == 200:
            return answer
        raise _refusal(ref, answer)

    def _send(self, ref: ImageRef, place: str, headers: Mapping[str, str]) -> httpx.Response:
        try:
            return self._transport.get(_place(ref)[0], place, headers)
        except httpx.HTTPError as error:
            raise RegistryError(
                f"the registry of {ref.repository} cannot be asked ({error or type(error).__name__}): check the "
                "network, or set images.mirror"
            ) from None

    def _authorize(self, ref: ImageRef, challenge: str) -> str | None:
        """Return the header Authorization that answers a challenge; None where the user has no credentials for it."""
        credentials = self.credentials(ref.repository)
        login = _basic(credentials)
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            return login
        asked = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or not asked.get("realm"):
            return None
        query = {key: asked[key] for key in ("service", "scope") if key in asked}
        try:
            if credentials and credentials.get("identitytoken"):
                form = {"grant_type": "refresh_token", "refresh_token": credentials["identitytoken"]}
                answer = self._transport.token(
                    asked["realm"], data={**query, **form, "client_id": "lightning-smith"}
                )
            else:
                headers = {"Authorization": login} if login else {}
                answer = self._transport.token(asked["realm"], params=query, headers=headers)
        except httpx.HTTPError as error:
            raise RegistryError(
                f"the registry of {ref.repository} gives no token ({error or type(error).__name__}): check the network"
            ) from None
        if answer.status_code != 200:
            raise _refusal(ref, answer)
        body = answer.json()
        return f"Bearer {body.get('token') or body.get('access_token')}"


def _basic(credentials: Mapping[str, str] | None) -> str | None:
    if not credentials or not credentials.get("username"):
        return None
    pair = f"{credentials['username']}:{credentials['password']}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _place(ref: ImageRef) -> tuple[str, str]:
    if ref.host is None or ref.host == HUB:
        path = ref.repository.removeprefix(f"{HUB}/")
        return _HUB_API, path if "/" in path else f"library/{path}"
    return ref.host, ref.repository.removeprefix(f"{ref.host}/")


def _for_platform(name: str, index: Mapping[str, Any]) -> str:
    platforms = []
    for entry in index["manifests"]:
        platform = entry.get("platform") or {}
        found = (platform.get("os", ""), platform.get("architecture", ""))
        if found == PLATFORM:
            return entry["digest"]
        if found != ("unknown", "unknown"):  # attestations
            platforms.append(found)
    _refuse_platform(name, platforms)
    raise RegistryError(f"the index of {name} names no image: push the image again")


def _refuse_platform(name: str, platforms: list[tuple[str, str]]) -> None:
    if platforms and PLATFORM not in platforms:
        have = ", ".join(sorted("/".join(platform) for platform in platforms))
        raise UserError(
            f"the image {name} is for {have}, not for {'/'.join(PLATFORM)}: ask for an image that is"
        )


def _refusal(ref: ImageRef, answer: httpx.Response) -> RegistryError:
    status = answer.status_code
    where = f"{ref.repository} at {answer.url.host}"
    if status in (401, 403):
        return AbsentError(
            f"there is no {where}, or no right to see it ({status}): check the name, or log in (docker login "
            f"{ref.host or ''})".replace(" )", ")"),
            status=status,
        )
    if status == 404:
        return AbsentError(f"there is no {where} with tag or digest {ref.digest or ref.tag}", status=status)
    if status == _TOO_MANY:
        return RegistryError(
            f"the registry limits how often {where} may be asked (429): log in (docker login), set images.mirror, "
            "or try later",
            status=status,
            retry_after_s=_retry_after_s(answer.headers.get("Retry-After")),
        )
    return RegistryError(
        f"the registry failed on {where} ({status} {answer.reason_phrase}): try again later",
        status=status,
        retry_after_s=_retry_after_s(answer.headers.get("Retry-After")),
    )


def _retry_after_s(text: str | None) -> float | None:
    """Return seconds of a header Retry-After, given as seconds or as a date (RFC 9110, 10.2.3)."""
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, (date - datetime.datetime.now(datetime.UTC)).total_seconds())
