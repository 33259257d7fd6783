"""Image references, by the rules of Docker."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.layered import tags
from lightning_smith.repositories.names import (
    ImageRef,
    add_name,
    any_spelling,
    image_key,
    registry_place,
    sources,
    spellings,
)

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
    [
        "",
        "Acme/X:latest",
        "acme/X",
        "x:" + "t" * 129,
        "x:",
        "x@sha256:12",
        "a//b",
        "a/-b",
        "a b",
        "x@",
        "/x",
        "a:65536/x",
    ],
)
def test_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        ImageRef.parse(text)


def test_the_key_is_the_name_alone_where_that_says_it_all() -> None:
    key = "swesmith.x86_64.pypi_1776_boltons.d39cfd15"
    same = (f"swesmith/{key}", f"swesmith/{key}:latest", f"docker.io/swebench/{key}")
    assert {image_key(name) for name in same} == {key}


OTHERS = [
    "acme/set",
    *(f"acme/set:{tag}" for tag in ("v1", "V1", "v-1", "v_1", "v1.0", "_", "t" * 128)),
    f"acme/set@{DIGEST}",
    f"acme/set@sha256:{'b' * 64}",
    "localhost:5000/acme/set",
    "localhost:5001/acme/set",
    "localhost:5000/other/set:v1",
]


def test_whatever_distinguishes_two_images_is_in_their_keys_and_tags() -> None:
    keys = [image_key(name) for name in OTHERS]
    assert len(set(keys)) == len(OTHERS) and keys[0] == "set" and keys[1].startswith("set-v1-")
    assert [image_key(key) for key in keys] == keys, "a key is its own"
    assert all(len(f"{key}.json") < 100 for key in keys)
    layer = AgentLayer(Path("x"), DIGEST, "glibc", "3", {}, "")
    made = [tag for name in OTHERS for tag in tags(name, layer)]
    assert len(set(made)) == 2 * len(OTHERS)
    assert [str(ImageRef.parse(tag).tag) for tag in made[:4]] == [
        "openai", f"openai-{'a' * 12}", "openai-v1", f"openai-v1-{'a' * 12}"
    ]  # fmt: skip


def test_places_of_images() -> None:
    assert registry_place("host:5000/hub/") == "host:5000/hub" and registry_place("a.b") == "a.b"
    for text in ("http://host:5000", "https://a.b/c", " a.b", "", "host:5000/Prefix", "acme"):
        with pytest.raises(UserError, match="is no place of images"):
            registry_place(text)


def test_two_names_of_one_key_are_refused() -> None:
    names: dict[str, str] = {}
    for name in ("swebench/swesmith.x.a__b.c", "acme/set:v1", "acme/set:v2", "acme/set:v1"):
        add_name(names, name)
    assert len(names) == 3
    for name in ("jyangballin/swesmith.x.a_1776_b.c", "other/set:v2"):
        with pytest.raises(UserError, match=f"and {name} share the key .*: write one name in all rows"):
            add_name(names, name)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("swebench/swesmith.x.a__b.c", "swesmith.x.a_1776_b.c"),
        ("acme/set", "acme/set"),
        ("acme/set:v1", "acme/set:v1"),
    ],
)
def test_what_a_daemon_is_asked_for(name: str, asked: str) -> None:
    """An image of another name that has the same last part is another image."""
    assert any_spelling(name) == asked


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


def test_keys_are_names_of_files_however_long_the_name() -> None:
    names = [f"acme/{'x' * 248}{end}" for end in ("1", "2", "1:" + "t" * 128, f"1@{DIGEST}")]
    keys = [image_key(name) for name in names]
    assert len(set(keys)) == 4 and max(len(f"{key}.json") for key in keys) <= 255
    assert [image_key(key) for key in keys] == keys
    with pytest.raises(UserError, match="has a repository of 256 characters, and Docker takes 255"):
        image_key("a/" + "x" * 254)


def test_the_evaluation_sets_names_have_one_key() -> None:
    key = "sweb.eval.x86_64.astropy_1776_astropy-12907"
    for name in (f"swebench/{key}:latest", "sweb.eval.x86_64.astropy__astropy-12907"):
        assert image_key(name) == key
    assert spellings(key, ("swebench",)) == [f"swebench/{key}", key, key.replace("_1776_", "__")]


@pytest.mark.parametrize(
    ("name", "organisations", "expected"),
    [
        (
            "swebench/swesmith.x.a_1776_b.c",
            ("swebench", "acme"),
            ["swebench/swesmith.x.a_1776_b.c", "acme/swesmith.x.a_1776_b.c"],
        ),
        ("swesmith.x.a__b.c:openai", ("swebench",), ["swebench/swesmith.x.a_1776_b.c:openai"]),
        ("host:5000/acme/swesmith.x.a__b.c", ("swebench",), ["host:5000/acme/swesmith.x.a__b.c"]),
        ("localhost/x", ("swebench",), ["localhost/x"]),
        ("acme/other", ("swebench",), ["acme/other"]),
        ("redis", ("swebench",), ["redis"]),
    ],
)
def test_where_an_image_is_pulled_from(
    name: str, organisations: tuple[str, ...], expected: list[str]
) -> None:
    assert sources(name, organisations) == expected


@pytest.mark.parametrize(
    ("name", "host"),
    [("x", None), ("acme/x", None), ("localhost/x", "localhost"), ("a:1/x", "a:1"), ("a.b/c/x:t", "a.b")],
)
def test_hosts(name: str, host: str | None) -> None:
    assert ImageRef.parse(name).host == host
