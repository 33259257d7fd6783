"""Which branches an image has: images freeze their repository's branches when they are built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.repositories.catalogue import ImageCatalogue
from lightning_smith.repositories.names import image_key


@dataclass(frozen=True)
class ImageBranches:
    """What one image answered."""

    image_name: str
    """As in the column image_name."""
    digest: str
    """`sha256:<hex>` of the image that was asked."""
    branches: frozenset[str]
    """Names without `main` and without a remote's name: the instance ids that the image can check out."""


class BranchLister(Protocol):
    """Asks one image for its branches, without running anything of a task."""

    def list_branches(self, image_name: str) -> ImageBranches:
        """UserError if there is no such image."""
        ...


class LocalBranches:
    """BranchLister of the images built under one folder (`git for-each-ref`)."""

    def __init__(self, images: Path) -> None:
        self._catalogue = ImageCatalogue(images)

    def list_branches(self, image_name: str) -> ImageBranches:
        """Also checks that the repository is still the one whose digest the image has."""
        image = self._catalogue[image_name]
        image.verify()
        return ImageBranches(image.image_name, image.digest, frozenset(image.branches()))


def write_branches(found: ImageBranches, out: Path) -> None:
    """Write `{"image_name", "digest", "branches": [sorted]}`."""
    row = {"image_name": found.image_name, "digest": found.digest, "branches": sorted(found.branches)}
    write_json(out, row)


def read_branches(paths: list[Path]) -> dict[str, frozenset[str]]:
    """Branches by image name from such files. Raise UserError if two files speak of one image."""
    found: dict[str, frozenset[str]] = {}
    for path in paths:
        row = read_json(path)
        try:
            image_name, listed = row["image_name"], row["branches"]
            whole = isinstance(listed, list) and all(isinstance(name, str) for name in (image_name, *listed))
        except (KeyError, TypeError):
            whole = False
        if not whole:
            raise UserError(
                f"{path} is not a list of branches: delete it and run scripts/release/list_branches.py"
            )
        if image_key(image_name) in map(image_key, found):
            raise UserError(f"{path} lists the branches of {image_name} a second time: name each image once")
        found[image_name] = frozenset(listed)
    return found
