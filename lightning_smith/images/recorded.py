"""Whether rollouts ran in the images that were prepared: what they recorded against what manifests say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json
from lightning_smith.repositories.names import image_key


class Recorded(Protocol):
    """What a rollout's record says of its image."""

    @property
    def instance_id(self) -> str: ...

    @property
    def image_digest(self) -> str:
        """Empty where the rollout ended before it had an image."""
        ...


def image_check(rows: Iterable[Mapping[str, Any]], manifests: Path | None) -> Callable[[Recorded], None]:
    """Return what raises UserError for a record made in another image than the manifest of its task's says.

    `rows` are tasks (`instance_id`, and `image_name` or `image`); without `manifests` every record passes. A rollout
    runs in the image as it was pulled (`base`), or with the agent layer (`image`).
    """
    names = {row["instance_id"]: row.get("image_name") or row.get("image") for row in rows}
    known: dict[str, set[str]] = {}

    def check(record: Recorded) -> None:
        if manifests is None or not record.image_digest:
            return
        name = str(names[record.instance_id])
        path = manifests / f"{image_key(name)}.json"
        if name not in known:
            manifest = read_json(path)
            known[name] = {manifest["base"]["id"], manifest["image"]["id"]}
        if record.image_digest not in known[name]:
            raise UserError(
                f"the rollout of {record.instance_id} ran in {record.image_digest}, and {path} says that {name} is "
                f"{' or '.join(sorted(known[name]))}: make the image again with `uv run snakemake --profile k8s -- "
                "prepare_images prepare_verified_images`, or delete the log of the rollouts in the other image"
            )

    return check
