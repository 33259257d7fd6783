"""The committed table of images: digests that are required, and sizes before anything is asked."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.repositories.names import image_key

COLUMNS = ("image", "digest", "compressed_bytes", "unpacked_bytes")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class KnownImage:
    """A row: what an image must be."""

    digest: str
    """`sha256:<hex>` of the manifest or index in its registry; the same in every copy of it."""
    compressed_bytes: int
    """What is fetched."""
    unpacked_bytes: int
    """What it takes at the daemon."""


def read_known(path: Path) -> Mapping[str, KnownImage]:
    """Return rows by image key; UserError names file and line of a malformed one. An absent file knows nothing."""
    known: dict[str, KnownImage] = {}
    if not path.exists():
        return known
    # Bytes that are no UTF-8 end as a name that is refused; spreadsheets put a mark at the beginning.
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        table = csv.DictReader(lines, delimiter="\t")
        if tuple(table.fieldnames or ()) != COLUMNS:
            raise UserError(f"{path} must have the columns {', '.join(COLUMNS)}, tab-separated")
        for row in table:
            where = f"{path}, row {row['image']}"
            sizes = (row["compressed_bytes"] or "", row["unpacked_bytes"] or "")
            if not _DIGEST.fullmatch(row["digest"] or "") or not all(map(str.isdigit, sizes)):
                raise UserError(f"{where}: needs sha256:<64 hexadecimal digits> and two numbers of bytes")
            try:
                key = image_key(row["image"])
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            if key in known:
                raise UserError(f"{where}: the image is there a second time, keep one")
            known[key] = KnownImage(row["digest"], int(sizes[0]), int(sizes[1]))
    return known
