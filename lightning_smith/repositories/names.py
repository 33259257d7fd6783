"""Image references, read by the rules of Docker: host, repository, tag and digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from lightning_smith.core.errors import UserError

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
# A first component is a host only if it has a dot or a port, or is localhost; else it is an organisation.
_HOST = rf"(?:localhost(?::[0-9]+)?|{_LABEL}(?:\.{_LABEL})+(?::[0-9]+)?|{_LABEL}:[0-9]+)"
_REPOSITORY = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,}")

_SWESMITH = "swesmith."
_EVALUATION = "sweb.eval."
_LAST_PORT = 65535
_LONGEST_REPOSITORY = 255
_LONGEST_KEY = 240
"""Of the 255 bytes that a file's name may have, with its ending."""
_PUBLISHED = (_SWESMITH, _EVALUATION)
_NOT_IN_KEYS = re.compile(r"[^a-z0-9]+")

ORGANISATIONS = ("swebench", "jyangballin", "swesmith")
"""Where SWE-smith's images have been published, the current place first; the last is the miniature's."""


@dataclass(frozen=True)
class ImageRef:
    """A reference; `tag` is "latest" if neither tag nor digest was given, None beside a bare digest."""

    repository: str
    """Host (if any) and path: `localhost:5000/acme/x`."""
    tag: str | None
    digest: str | None

    @property
    def host(self) -> str | None:
        """The registry's host, with its port if the reference has one; None stands for Docker Hub."""
        first, slash, _ = self.repository.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else None

    @property
    def version(self) -> str:
        """The digest, else the tag; empty for the tag latest."""
        return self.digest or ("" if self.tag == "latest" else self.tag or "")

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """Read a reference. Raise UserError for capitals in the repository, a bad tag or a bad digest."""
        name, at, digest = text.partition("@")
        if at and not _DIGEST.fullmatch(digest):
            raise UserError(
                f"image {text!r} has a malformed digest {digest!r}: write @sha256:<hexadecimal digits>"
            )
        slash = name.rfind("/")
        colon = name.rfind(":")
        tag = name[colon + 1 :] if colon > slash else None
        repository = name[:colon] if colon > slash else name
        if tag is not None and not _TAG.fullmatch(tag):
            raise UserError(
                f"image {text!r} has a malformed tag: at most 128 letters, digits, '_', '.' and '-'"
            )
        if not _REPOSITORY.fullmatch(repository):
            raise UserError(
                f"image {text!r} has a malformed repository: lower-case letters, digits, '.', '_', '-', '/'"
            )
        if len(repository) > _LONGEST_REPOSITORY:
            raise UserError(
                f"image {text[:60]!r}... has a repository of {len(repository)} characters, and Docker takes "
                f"{_LONGEST_REPOSITORY}: shorten it"
            )
        port = repository.partition("/")[0].partition(":")[2]
        if port and int(port) > _LAST_PORT:
            raise UserError(
                f"image {text!r} names the port {port}, and ports end at {_LAST_PORT}: correct it"
            )
        return cls(repository, tag or (None if at else "latest"), digest or None)


def registry_place(text: str) -> str:
    """`host[:port][/prefix]`, below which images are. Raise UserError for anything else, such as an address with
    https://.
    """
    place = text.rstrip("/")
    if not _REPOSITORY.fullmatch(f"{place}/x") or ImageRef.parse(f"{place}/x").host is None:
        raise UserError(
            f"{text!r} is no place of images: write the registry's host[:port][/prefix], without https:// or http:// "
            "(the Docker daemon's insecure-registries say who is asked over HTTP)"
        )
    return place


def bare_name(image_name: str) -> str:
    """Return the image name without host, organisation, tag and digest.

    `swesmith/swesmith.x86_64.pypi_1776_boltons.d39cfd15` gives `swesmith.x86_64.pypi_1776_boltons.d39cfd15`, and so
    does the spelling of before July 2025, `swesmith.x86_64.pypi__boltons.d39cfd15`. The evaluation set's images,
    `sweb.eval.x86_64.<instance>`, have the same two spellings.
    """
    name = ImageRef.parse(image_name).repository.rpartition("/")[2]
    return name.replace("__", "_1776_") if name.startswith(_PUBLISHED) else name


def image_key(image_name: str) -> str:
    """Return what an image is called in files, folders and tables; two names of one key are refused (`add_name`).

    It is the bare name, since organisations publish copies of one image. A host other than Docker Hub, a tag other than
    latest and a digest add themselves and a hash: `acme/x:v1` gives `x-v1-<hash>`. The key of a key is itself.
    """
    ref, bare = ImageRef.parse(image_name), bare_name(image_name)
    place = "" if ref.host in (None, "docker.io") else ref.repository
    key = bare
    if place or ref.version:
        told = _NOT_IN_KEYS.sub("-", f"{ref.host or ''} {ref.version}".lower())[:40].strip("-")
        key = "-".join(part for part in (bare, told, _hash(f"{place} {ref.version}")) if part)
    return key if len(key) <= _LONGEST_KEY else f"{key[:200].strip('._-')}-{_hash(key)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def any_spelling(image_name: str) -> str:
    """Return the key alone of an image that a daemon may have under several names (`spellings`), else the name."""
    key = image_key(image_name)
    return key if key == bare_name(image_name) and key.startswith(_PUBLISHED) else image_name


def add_name(names: MutableMapping[str, str], image_name: str) -> None:
    """Put an image name into `names` by its key. Raise UserError if another name of that key is there."""
    other = names.setdefault(image_key(image_name), image_name)
    if other != image_name:
        raise UserError(
            f"the images {other} and {image_name} share the key {image_key(image_name)}, so that one would be taken "
            "for the other: write one name in all rows that mean the same image"
        )


def is_evaluation(image_name: str) -> bool:
    """Return whether an image is of the evaluation set: one an instance, with the repository at its base commit."""
    return bare_name(image_name).startswith(_EVALUATION)


def spellings(image_name: str, organisations: Sequence[str] = ORGANISATIONS) -> list[str]:
    """Return names under which an image may have been pulled, the current one first.

    A name with an organisation or host stands for itself alone. SWE-smith's images have been published under two
    organisations, and before July 2025 under none, with `__` in place of `_1776_`.
    """
    ref = ImageRef.parse(image_name)
    if "/" in ref.repository:
        return [image_name]
    bare = bare_name(image_name)
    suffix = image_name.removeprefix(ref.repository)
    names = [image_name]
    if bare.startswith(_PUBLISHED):
        names = [f"{organisation}/{bare}" for organisation in organisations]
        names += [bare, bare.replace("_1776_", "__")]
    return [name.removesuffix(suffix) + suffix for name in names]


def sources(image_name: str, organisations: Sequence[str] = ORGANISATIONS) -> list[str]:
    """Return names from which an image may be pulled: its own, then the same bare name of the other organisations.

    A name with a host is pulled from that host alone. Names without an organisation are of no registry.
    """
    ref = ImageRef.parse(image_name)
    names = [image_name] if "/" in ref.repository else []
    if ref.host is None:
        suffix = image_name.removeprefix(ref.repository)
        names += [name + suffix for name in spellings(bare_name(image_name), organisations) if "/" in name]
    return list(dict.fromkeys(names)) or [image_name]
