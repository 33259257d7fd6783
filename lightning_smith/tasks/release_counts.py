"""How many rows, images and empty statements a release has, against what the configuration says it must have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_smith.errors import UserError
from lightning_smith.images.names import image_key
from lightning_smith.tasks.columns import iter_batches
from lightning_smith.tasks.filters import statement

EMPTY = (statement.NULL, statement.EMPTY, statement.WHITESPACE)
"""What the published count of empty statements takes together: `not (text or "").strip()`."""


def count_release(shards: Iterable[Path]) -> dict[str, int]:
    """Counts by name: rows, empty_statements, null, empty, whitespace, invisible, images, repositories.

    Holds one batch of rows at a time. Raises UserError for a shard that is none, and if two images of different
    organisations share a key, so that files named by it would be mixed up.
    """
    rows, statements = 0, Counter[str]()
    images: dict[str, str] = {}
    repositories: set[str] = set()
    for batch in iter_batches(shards, ("instance_id", "image_name", "repo", "problem_statement")):
        rows += batch.num_rows
        statements.update(reason for reason in statement.reasons(batch) if reason is not None)
        repositories.update(batch.column("repo").to_pylist())
        for name in dict.fromkeys(batch.column("image_name").to_pylist()):
            if images.setdefault(image_key(name), name) != name:
                raise UserError(
                    f"the images {images[image_key(name)]} and {name} share the key {image_key(name)}"
                )
    return {
        "rows": rows,
        "empty_statements": sum(statements[reason] for reason in EMPTY),
        **{reason: statements[reason] for reason in statement.REASONS},
        "images": len(images),
        "repositories": len(repositories),
    }


def differences(found: Mapping[str, int], expected: Mapping[str, int | None]) -> list[str]:
    """`<found> <name> instead of <expected>` for each expected count (None: any) that was not found."""
    return [
        f"{found[name]} {name.replace('_', ' ')} instead of {wanted}"
        for name, wanted in expected.items()
        if wanted is not None and found[name] != wanted
    ]


def describe_release(
    shards: Iterable[Path], expected: Mapping[str, int | None], *, allow_other: bool
) -> dict[str, Any]:
    """Counts of a release and how they differ from the expected ones.

    Raises UserError naming found and expected counts if they differ, unless `allow_other`.
    """
    found = count_release(shards)
    differing = differences(found, expected)
    if differing and not allow_other:
        raise UserError(
            f"the release has {', '.join(differing)}: it is another revision than release.revision in config.yaml "
            "says, or set release.allow_other_counts to true to go on with it, which data/release.json then records"
        )
    return {"counts": found, "expected": dict(expected), "differences": differing}
