"""Image references, read by the rules of Docker: host, repository, tag and digest."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lightning_smith.errors import UserError

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
# A first component is a host only if it has a dot or a port, or is localhost; else it is an organisation.
_HOST = rf"(?:localhost(?::[0-9]+)?|{_LABEL}(?:\.{_LABEL})+(?::[0-9]+)?|{_LABEL}:[0-9]+)"
_REPOSITORY = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,}")


@dataclass(frozen=True)
class ImageRef:
    """A reference; `tag` is "latest" if neither tag nor digest was given, None beside a bare digest."""

    repository: str
    """Host (if any) and path: `localhost:5000/acme/x`."""
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """Read a reference; UserError for capitals in the repository, a bad tag or a bad digest."""
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
        return cls(repository, tag or (None if at else "latest"), digest or None)


def image_key(image_name: str) -> str:
    """The image name without host, organisation, tag and digest: a file or folder name.

    `swesmith/swesmith.x86_64.pypi_1776_boltons.d39cfd15` gives `swesmith.x86_64.pypi_1776_boltons.d39cfd15`.
    """
    return ImageRef.parse(image_name).repository.rpartition("/")[2]
