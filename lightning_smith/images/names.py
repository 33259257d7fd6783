"""Image references, read by the rules of Docker: host, repository, tag and digest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_smith.errors import UserError

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
# A first component is a host only if it has a dot or a port, or is localhost; else it is an organisation.
_HOST = rf"(?:localhost(?::[0-9]+)?|{_LABEL}(?:\.{_LABEL})+(?::[0-9]+)?|{_LABEL}:[0-9]+)"
_REPOSITORY = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,}")

_SWESMITH = "swesmith."
_EVALUATION = "sweb.eval."

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

    `swesmith/swesmith.x86_64.pypi_1776_boltons.d39cfd15` gives `swesmith.x86_64.pypi_1776_boltons.d39cfd15`, and so
    does the spelling of before July 2025, `swesmith.x86_64.pypi__boltons.d39cfd15`. The evaluation set's images,
    `sweb.eval.x86_64.<instance>`, have the same two spellings.
    """
    name = ImageRef.parse(image_name).repository.rpartition("/")[2]
    return name.replace("__", "_1776_") if name.startswith((_SWESMITH, _EVALUATION)) else name


def is_evaluation(image_name: str) -> bool:
    """Whether an image is of the evaluation set: one an instance, with the repository at its base commit."""
    return image_key(image_name).startswith(_EVALUATION)


def spellings(image_name: str, organisations: Sequence[str] = ORGANISATIONS) -> list[str]:
    """Names under which an image may have been pulled, the current one first.

    A name with an organisation or host stands for itself alone. SWE-smith's images have been published under two
    organisations, and before July 2025 under none, with `__` in place of `_1776_`.
    """
    ref = ImageRef.parse(image_name)
    if "/" in ref.repository:
        return [image_name]
    key = image_key(image_name)
    suffix = image_name.removeprefix(ref.repository)
    names = [image_name]
    if key.startswith((_SWESMITH, _EVALUATION)):
        names = [f"{organisation}/{key}" for organisation in organisations]
        names += [key, key.replace("_1776_", "__")]
    return [name.removesuffix(suffix) + suffix for name in names]


def sources(image_name: str, organisations: Sequence[str] = ORGANISATIONS) -> list[str]:
    """Names from which an image may be pulled: its own, then the same key of the other organisations.

    A name with a host is pulled from that host alone. Names without an organisation are of no registry.
    """
    ref = ImageRef.parse(image_name)
    names = [image_name] if "/" in ref.repository else []
    if ref.host is None:
        key = image_key(image_name)
        suffix = image_name.removeprefix(ref.repository)
        names += [name + suffix for name in spellings(key, organisations) if "/" in name]
    return list(dict.fromkeys(names)) or [image_name]
