"""The images that a release names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_smith.images.names import image_key
from lightning_smith.tasks.columns import iter_batches


def list_images(shards: Iterable[Path]) -> list[str]:
    """Keys of all images, sorted; `release_counts` has refused two images that share one."""
    keys = {
        image_key(n) for batch in iter_batches(shards, ("image_name",)) for n in batch.column(0).to_pylist()
    }
    return sorted(keys)
