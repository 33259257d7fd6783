"""The local images under one folder, by image name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.repositories.local import LocalImage
from lightning_smith.repositories.names import ImageRef, image_key


def image_files(folder: Path, names: Mapping[str, str]) -> list[Path]:
    """`image.json` of each image of `names` (by key) below `folder`. Raise UserError if some are not there."""
    found = [folder / key / "image.json" for key in names]
    if missing := [path for path in found if not path.is_file()]:
        raise UserError(
            f"{len(missing)} of {len(found)} images of the release have no git repository on disk, the first is "
            f"{names[missing[0].parent.name]}: put each at {folder}/<key>/ (docs/data.md; {missing[0].parent} for the "
            "first), or set backends.images to docker"
        )
    return found


class ImageCatalogue:
    """`catalogue[image_name]` opens `<folder>/<image key>/` once and keeps it; the key alone will do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: dict[str, LocalImage] = {}

    def __getitem__(self, image_name: str) -> LocalImage:
        """UserError if there is no such image, or if another organisation's image of that key is there."""
        if image_name not in self._opened:
            image = LocalImage.open(self.folder / image_key(image_name))
            if image_name != image_key(image_name) and ImageRef.parse(image_name) != ImageRef.parse(
                image.image_name
            ):
                raise UserError(
                    f"{image.folder} holds the image {image.image_name}, not {image_name}: build the latter"
                )
            self._opened[image_name] = image
        return self._opened[image_name]

    def __iter__(self):
        """Yield every image that was built, in order of its key."""
        for about in sorted(self.folder.glob("*/image.json")):
            yield LocalImage.open(about.parent)
