"""Image references, by the rules of Docker."""

from __future__ import annotations

import pytest

from lightning_smith.errors import UserError
from lightning_smith.images.names import ImageRef, image_key, spellings

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "repository", "tag", "digest"),
    [
        ("x", "x", "latest", None),
        ("acme/x:openai", "acme/x", "openai", None),
        ("localhost/acme/x", "localhost/acme/x", "latest", None),
        (
            "localhost:5000/acme/swesmith.x86_64.a_1776_b.0badcafe",
            "localhost:5000/acme/swesmith.x86_64.a_1776_b.0badcafe",
            "latest",
            None,
        ),
        (f"host:5000/x@{DIGEST}", "host:5000/x", None, DIGEST),
        (f"host:5000/x:t@{DIGEST}", "host:5000/x", "t", DIGEST),
        ("GHCR.io/acme/x", "GHCR.io/acme/x", "latest", None),
    ],
)
def test_references(text: str, repository: str, tag: str | None, digest: str | None) -> None:
    assert ImageRef.parse(text) == ImageRef(repository, tag, digest)


@pytest.mark.parametrize(
    "text",
    ["", "Acme/X:latest", "acme/X", "x:" + "t" * 129, "x:", "x@sha256:12", "a//b", "a/-b", "a b", "x@", "/x"],
)
def test_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        ImageRef.parse(text)


def test_the_key_is_the_name_alone() -> None:
    key = "swesmith.x86_64.pypi_1776_boltons.d39cfd15"
    assert image_key(f"swesmith/{key}") == image_key(f"localhost:5000/swesmith/{key}:openai") == key


@pytest.mark.parametrize("organisation", ["swebench/", "jyangballin/", ""])
def test_historical_spellings_have_one_key(organisation: str) -> None:
    key = "swesmith.x86_64.pypi_1776_boltons.d39cfd15"
    assert image_key(organisation + key) == image_key(organisation + key.replace("_1776_", "__")) == key
    assert image_key("acme/my__image") == "my__image"


def test_a_key_may_have_been_pulled_under_several_names() -> None:
    key, old = "swesmith.x86_64.pypi_1776_boltons.d39cfd15", "swesmith.x86_64.pypi__boltons.d39cfd15"
    names = [f"swebench/{key}", f"jyangballin/{key}", f"swesmith/{key}", key, old]
    assert spellings(key) == spellings(old) == names
    assert spellings(f"{key}:openai") == [f"{name}:openai" for name in names]
    assert spellings(f"jyangballin/{key}") == [f"jyangballin/{key}"] and spellings("redis") == ["redis"]
