"""Drops rows whose branch their image lacks: images froze their branches before some tasks were published."""

from __future__ import annotations

from collections.abc import Mapping, Set

import pyarrow as pa

from lightning_smith.core.errors import UserError
from lightning_smith.repositories.names import image_key

NAME = "branch"
COLUMNS = ("instance_id", "image_name")
NOT_IN_IMAGE = "not_in_image"
"""The branch may exist on the repository's host all the same: the image alone decides."""
REASONS = (NOT_IN_IMAGE,)


def reasons(batch: pa.RecordBatch, branches: Mapping[str, Set[str]]) -> list[str | None]:
    """`not_in_image` for each row to drop; `branches` are those of each image, by image name.

    An image is identified by its key: the release and the daemon may name its organisation differently. Raises
    Raise UserError for an image whose branches are not known.
    """
    by_key = {image_key(name): listed for name, listed in branches.items()}
    keys: dict[str, str] = {}
    found: list[str | None] = []
    for instance_id, image_name in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
        if image_name not in keys:
            keys[image_name] = image_key(image_name or "")
        if keys[image_name] not in by_key:
            raise UserError(
                f"the branches of image {image_name} (instance {instance_id}) are not known: "
                "run scripts/release/list_branches.py for it"
            )
        found.append(None if instance_id in by_key[keys[image_name]] else NOT_IN_IMAGE)
    return found
