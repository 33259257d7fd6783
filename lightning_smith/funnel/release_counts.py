"""How many rows, images and empty statements a release has, against what the configuration says it must have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.funnel.filters import statement
from lightning_smith.release.columns import iter_batches
from lightning_smith.release.patches import split_diff
from lightning_smith.repositories.names import add_name

COUNTED = ("rows", "empty_statements", "images")
"""Counts of which the configuration says what they must be."""

EMPTY = (statement.NULL, statement.EMPTY, statement.WHITESPACE)
"""What the published count of empty statements takes together: `not (text or "").strip()`."""


LANGUAGES = {
    **{".py": "Python", ".pyi": "Python", ".pyx": "Python", ".go": "Go", ".php": "PHP", ".rs": "Rust"},
    **{
        ".js": "JavaScript",
        ".jsx": "JavaScript",
        ".mjs": "JavaScript",
        ".ts": "TypeScript",
        ".tsx": "TypeScript",
    },
    **{
        ".java": "Java",
        ".c": "C",
        ".h": "C",
        ".cc": "C++",
        ".cpp": "C++",
        ".hpp": "C++",
        ".cs": "C#",
        ".rb": "Ruby",
    },
}
"""Of the languages that SWE-smith has profiles for, by suffix."""
OTHER_LANGUAGE = "another language"


@dataclass(frozen=True)
class ReleaseCounts:
    """What one pass over a release counts."""

    counts: dict[str, int]
    """By name: rows, empty_statements, null, empty, whitespace, invisible, images, repositories."""
    repositories_by_language: dict[str, int]
    """Each repository once, by the language of most files that its patches edit."""


def count_release(shards: Iterable[Path]) -> ReleaseCounts:
    """Count; holds one batch of rows at a time. Raise UserError for a shard that is none, and if two names of
    images share a key, so that files named by it would be mixed up.
    """
    rows, statements = 0, Counter[str]()
    images: dict[str, str] = {}
    languages: dict[str, Counter[str]] = {}
    for batch in iter_batches(shards, ("instance_id", "image_name", "repo", "problem_statement", "patch")):
        rows += batch.num_rows
        statements.update(reason for reason in statement.reasons(batch) if reason is not None)
        for repo, patch in zip(*(batch.column(name).to_pylist() for name in ("repo", "patch")), strict=True):
            parts = split_diff((patch or "").encode("utf-8", "replace"))
            suffixes = [PurePosixPath(name).suffix for part in parts for name in part.names]
            languages.setdefault(repo, Counter()).update(LANGUAGES.get(s, OTHER_LANGUAGE) for s in suffixes)
        names = batch.column("image_name").to_pylist()
        for name in dict.fromkeys(names):
            try:
                add_name(images, name)
            except UserError as error:
                instance_id = batch.column("instance_id")[names.index(name)]
                raise UserError(f"instance {instance_id}: {error}") from None
    counts = {
        "rows": rows,
        "empty_statements": sum(statements[reason] for reason in EMPTY),
        **{reason: statements[reason] for reason in statement.REASONS},
        "images": len(images),
        "repositories": len(languages),
    }
    return ReleaseCounts(counts, dict(sorted(Counter(map(_most, languages.values())).items())))


def _most(languages: Counter[str]) -> str:
    """Return the language that is met most often; of two, the first by name."""
    return min(languages, key=lambda name: (-languages[name], name), default=OTHER_LANGUAGE)


def differences(found: Mapping[str, int], expected: Mapping[str, int | None]) -> list[str]:
    """`<found> <name> instead of <expected>` for each expected count (None: any) that was not found."""
    return [
        f"{found[name]} {name.replace('_', ' ')} instead of {wanted}"
        for name, wanted in expected.items()
        if wanted is not None and found[name] != wanted
    ]


def describe_release(
    shards: Iterable[Path], expected: Mapping[str, int | None], *, allow_other: Collection[str]
) -> dict[str, Any]:
    """Return counts of a release and how they differ from the expected ones.

    Raise UserError naming found and expected counts if one differs that is not in `allow_other`.
    """
    found = count_release(shards)
    refused = {name: wanted for name, wanted in expected.items() if name not in allow_other}
    if differing := differences(found.counts, refused):
        raise UserError(
            f"the release has {', '.join(differing)}: it is another revision than release.revision in config.yaml "
            f"says, or name what may differ in release.allow_other_counts ({', '.join(COUNTED)}), which "
            "{data}/release.json then records"
        )
    return {
        "counts": found.counts,
        "repositories_by_language": found.repositories_by_language,
        "expected": dict(expected),
        "differences": differences(found.counts, expected),
    }
