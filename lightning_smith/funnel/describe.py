"""The page that a run of the data funnel leaves: which release, which counts, which files, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_smith.core.markdown import table
from lightning_smith.funnel.ledger import FunnelRow
from lightning_smith.funnel.overlap import HEADER

PUBLISHED = {"empty statements": 18_033, "branch not in its image": 1_265}
"""What the published recipe says its filters dropped; the third filter's count is not published."""

PUBLISHED_REPOSITORIES = 128
"""`128 Python repositories`, which describes an older release of 50,137 rows."""


@dataclass(frozen=True)
class DataFile:
    """A file that went in or came out."""

    name: str
    size: int
    sha256: str


def describe_data(
    *,
    source: str,
    release: Mapping[str, Any],
    shards: Sequence[DataFile],
    funnel: Sequence[FunnelRow],
    readings: Mapping[str, int],
    candidates: DataFile,
    overlap: Sequence[Sequence[str]],
) -> str:
    """Return the page. `release` is release.json, `readings` branch_readings.json, `overlap` what `read_overlaps`
    returns.
    """
    counts = release["counts"]
    return "\n".join(
        [
            "# Data of this run",
            "",
            f"Source: {source}. {counts['rows']:,} rows, {counts['images']:,} images, "
            f"{counts['repositories']:,} repositories. {_languages(release['repositories_by_language'])}",
            *_differences(release["differences"]),
            "",
            "## What each filter kept and dropped",
            "",
            *funnel_table(funnel),
            "",
            f"Statements that are null, empty or blank: {counts['empty_statements']:,} (published: "
            f"{PUBLISHED['empty statements']:,}). Rows whose branch their image lacks: {readings['all_rows']:,} of "
            f"all rows, {readings['left_rows']:,} of those left for that filter (published: "
            f"{PUBLISHED['branch not in its image']:,}, without saying of which).",
            "",
            "## What the evaluation set shares",
            "",
            *overlap_table(overlap),
            "",
            "## Files",
            "",
            *table(("file", "bytes", "sha256"), [_file_row(file) for file in (*shards, candidates)]),
            "",
        ]
    )


def overlap_table(overlap: Sequence[Sequence[str]]) -> list[str]:
    """Return lines that say what training tasks and evaluation set share; `overlap` as `contamination.read_overlaps`
    gives.
    """
    if not overlap:
        return ["No repository is in both sets."]
    return table([name.replace("_", " ") for name in HEADER], overlap)


def funnel_table(funnel: Sequence[FunnelRow]) -> list[str]:
    """Return the ledger, as lines."""
    return table(("filter", "kept", "dropped", "reason"), [_funnel_row(row) for row in funnel])


def _languages(repositories: Mapping[str, int]) -> str:
    """Return what was found for the published sentence."""
    found = ", ".join(
        f"{count:,} {name}"
        for name, count in sorted(repositories.items(), key=lambda item: (-item[1], item[0]))
    )
    return (
        f"By the suffix of most files that their patches edit: {found} (the published description says "
        f"{PUBLISHED_REPOSITORIES} Python repositories)."
    )


def _differences(differences: Sequence[str]) -> list[str]:
    if not differences:
        return []
    return [
        "",
        f"**Other counts than configured**: {', '.join(differences)}. The run went on, since "
        "`release.allow_other_counts` names them.",
    ]


def _funnel_row(row: FunnelRow) -> tuple[str, ...]:
    return (row.filter, f"{row.kept:,}", f"{row.dropped:,}", row.reason)


def _file_row(file: DataFile) -> tuple[str, ...]:
    return (file.name, f"{file.size:,}", file.sha256)
