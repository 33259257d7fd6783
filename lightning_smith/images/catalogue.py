"""The local images under one folder, by image name."""

from __future__ import annotations

from pathlib import Path

from lightning_smith.errors import UserError
from lightning_smith.images.local import LocalImage
from lightning_smith.images.names import ImageRef, image_key


class ImageCatalogue:
    """`catalogue[image_name]` opens `<folder>/<image key>/` once and keeps it; the key alone will do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: dict[str, LocalImage] = {}

    def __getitem__(self, image_name: str) -> LocalImage:
        """UserError if there is no such image, or if another organisation's image of that key is there."""
        if image_name not in self._opened:
            image = LocalImage.open(self.folder / image_key(image_name))
            wanted = ImageRef.parse(image_name).repository
            if wanted not in (image_key(image_name), ImageRef.parse(image.image_name).repository):
                raise UserError(
                    f"{image.folder} holds the image {image.image_name}, not {image_name}: build the latter"
                )
            self._opened[image_name] = image
        return self._opened[image_name]

    def __iter__(self):
        """Every image that was built, in order of its key."""
        for about in sorted(self.folder.glob("*/image.json")):
            yield LocalImage.open(about.parent)
