"""The images that a release names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_smith.errors import UserError
from lightning_smith.images.names import image_key
from lightning_smith.tasks.columns import iter_batches


def list_images(shards: Iterable[Path], expected_rows: int = 0) -> list[str]:
    """Keys of all images, sorted.

    Raises UserError if two images of different organisations share a key, and if the release does not have
    `expected_rows` rows (0: any number will do).
    """
    rows = 0
    names: dict[str, str] = {}
    for batch in iter_batches(shards, ("image_name",)):
        rows += batch.num_rows
        for name in dict.fromkeys(batch.column(0).to_pylist()):
            if names.setdefault(image_key(name), name) != name:
                raise UserError(
                    f"the images {names[image_key(name)]} and {name} share the key {image_key(name)}"
                )
    if expected_rows and rows != expected_rows:
        raise UserError(
            f"the release has {rows} rows instead of {expected_rows}: "
            "check release.revision and release.rows in config.yaml"
        )
    return sorted(names)
