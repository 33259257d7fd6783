"""What is read of registries and of the committed table, without either."""

from __future__ import annotations

import datetime
import email.utils
from pathlib import Path

import pytest

from lightning_smith.errors import UserError
from lightning_smith.images.known import KnownImage, read_known
from lightning_smith.images.registry import _for_platform, _retry_after_s, through_mirror

REPOSITORY = Path(__file__).resolve().parents[2]
HEADER = "image\tdigest\tcompressed_bytes\tunpacked_bytes\n"
DIGEST = "sha256:" + "a" * 64


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after_s("120") == 120 and _retry_after_s(None) is None and _retry_after_s("soon") is None
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
    assert _retry_after_s(email.utils.format_datetime(later, usegmt=True)) == pytest.approx(90, abs=2)
    assert _retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0


@pytest.mark.parametrize(
    ("name", "mirror", "expected"),
    [
        ("swebench/x", None, "swebench/x"),
        ("swebench/x:t", "m:5000/hub/", "m:5000/hub/swebench/x:t"),
        ("docker.io/swebench/x", "m:5000", "m:5000/swebench/x"),
        ("host:1/acme/x", "m:5000", "host:1/acme/x"),
    ],
)
def test_a_mirror_stands_for_docker_hub_alone(name: str, mirror: str | None, expected: str) -> None:
    assert through_mirror(name, mirror) == expected


def test_an_index_names_the_image_of_this_platform() -> None:
    arm = {"digest": "sha256:1", "platform": {"os": "linux", "architecture": "arm64"}}
    amd = {"digest": "sha256:2", "platform": {"os": "linux", "architecture": "amd64"}}
    attestation = {"digest": "sha256:3", "platform": {"os": "unknown", "architecture": "unknown"}}
    assert _for_platform("x", {"manifests": [arm, attestation, amd]}) == "sha256:2"
    with pytest.raises(UserError, match="the image x is for linux/arm64, not for linux/amd64"):
        _for_platform("x", {"manifests": [arm, attestation]})


def test_the_table_of_known_images(tmp_path: Path) -> None:
    table = tmp_path / "images.tsv"
    assert read_known(table) == {}
    table.write_text(f"# a comment\n{HEADER}swesmith.x.a__b.c\t{DIGEST}\t10\t20\n")
    assert read_known(table) == {"swesmith.x.a_1776_b.c": KnownImage(DIGEST, 10, 20)}
    for row in (f"x\t{DIGEST}\t1\t", "x\tsha256:1\t1\t1", f"x\t{DIGEST}\t-1\t1"):
        table.write_text(f"{HEADER}{row}\n")
        with pytest.raises(UserError, match=r"images.tsv, row x: needs sha256"):
            read_known(table)
    table.write_text(f"{HEADER}x\t{DIGEST}\t1\t1\norg/x\t{DIGEST}\t1\t1\n")
    with pytest.raises(UserError, match="a second time"):
        read_known(table)
    table.write_text("image\n")
    with pytest.raises(UserError, match="must have the columns image, digest"):
        read_known(table)


def test_the_committed_table_can_be_read() -> None:
    read_known(REPOSITORY / "assets/images/images.tsv")
