"""What a downloaded release of 222 images and an evaluation set of 500 leave in a checkout, without content."""

from __future__ import annotations

from pathlib import Path

RELEASE = [f"swesmith.x86_64.owner_1776_package{n}.0123abcd" for n in range(222)]
VERIFIED = [f"sweb.eval.x86_64.owner_1776_package-{n}" for n in range(500)]


def place_release(checkout: Path) -> None:
    """Write the files that a plan at full size looks into, and empty ones for the rest."""
    data = checkout / "data"
    (data / "raw").mkdir(parents=True)
    (data / "image_names").mkdir()
    for n in range(11):
        (data / f"raw/train-{n:05d}-of-00011.parquet").touch()
        (data / f"raw/train-{n:05d}-of-00011.parquet.json").touch()
    for name in ("verified.parquet", "verified.parquet.json", "release.json"):
        (data / name).touch()
    for name, keys in (("release", RELEASE), ("verified", VERIFIED)):
        rows = "".join(f"{key}\tswebench/{key}\n" for key in keys)
        (data / f"image_names/{name}.tsv").write_text(rows)
