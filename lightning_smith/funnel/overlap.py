"""Overlap of training tasks with the evaluation set: the same repositories, and the same files of them.

A SWE-smith repository is a snapshot of a real one, `swesmith/<owner>__<name>.<commit>`; SWE-bench Verified names the
real one, `<owner>/<name>`. Its instances have patches as well (in the direction of the repair), so the files that both
edit can be named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.tables import read_table, write_table
from lightning_smith.release.columns import iter_batches
from lightning_smith.release.evaluation_set import read_tasks
from lightning_smith.release.patches import UnreadablePatchError, edited_files

HEADER = (
    "repository",
    "evaluation_instances",
    "training_tasks",
    "shared_files",
    "training_tasks_on_shared_files",
)

_SNAPSHOT = re.compile(r"(?:[^/]+/)?(?P<owner>.+?)__(?P<name>.+)\.[0-9a-f]{8}")


@dataclass(frozen=True)
class Edits:
    """A row of either set: the repository that it is of, and the files that its patch edits."""

    instance_id: str
    repository: str
    files: frozenset[str]


@dataclass(frozen=True)
class Overlap:
    """One repository that both sets have."""

    repository: str
    evaluation_instances: int
    training_tasks: tuple[str, ...]
    shared_files: tuple[str, ...]
    on_shared_files: tuple[str, ...]
    """Training tasks that edit one of `shared_files`."""

    def row(self) -> tuple[str, ...]:
        """Return the values under HEADER."""
        return (
            self.repository,
            str(self.evaluation_instances),
            str(len(self.training_tasks)),
            str(len(self.shared_files)),
            str(len(self.on_shared_files)),
        )


def real_repository(repo: str) -> str:
    """`<owner>/<name>` in lower case of a snapshot's or a real repository's name."""
    match = _SNAPSHOT.fullmatch(repo)
    return (f"{match['owner']}/{match['name']}" if match else repo).lower()


def edits(instance_id: str, repo: str, patch: str) -> Edits:
    """Return a row's edits; a patch that cannot be read edits nothing that is known."""
    try:
        files = edited_files(patch)
    except UnreadablePatchError:
        files = set()
    return Edits(instance_id, real_repository(repo), frozenset(files))


def training_edits(shards: Iterable[Path]) -> Iterator[Edits]:
    """Edits of every row of a release; holds one batch of rows at a time."""
    columns = ("instance_id", "repo", "patch")
    for batch in iter_batches(shards, columns):
        yield from map(edits, *(batch.column(name).to_pylist() for name in columns))


def evaluation_edits(path: Path) -> Iterator[Edits]:
    """Edits of every row of an evaluation set. Raise UserError if the file is absent or lacks a column."""
    for row in read_tasks(path):
        yield edits(row["instance_id"], row["repo"], row["patch"])


def find_overlaps(training: Iterable[Edits], evaluation: Iterable[Edits]) -> list[Overlap]:
    """Return every repository that both sets have, in order of its name."""
    instances: dict[str, int] = defaultdict(int)
    files: dict[str, set[str]] = defaultdict(set)
    for item in evaluation:
        instances[item.repository] += 1
        files[item.repository] |= item.files
    tasks: dict[str, list[Edits]] = defaultdict(list)
    for item in training:
        if item.repository in instances:
            tasks[item.repository].append(item)
    return [_overlap(name, instances[name], tasks[name], files[name]) for name in sorted(tasks)]


def _overlap(name: str, instances: int, tasks: list[Edits], evaluated: Set[str]) -> Overlap:
    touched = [item for item in tasks if item.files & evaluated]
    shared = set().union(*(item.files & evaluated for item in touched)) if touched else set()
    return Overlap(
        name,
        instances,
        tuple(sorted(item.instance_id for item in tasks)),
        tuple(sorted(shared)),
        tuple(sorted(item.instance_id for item in touched)),
    )


def write_overlaps(path: Path, overlaps: Iterable[Overlap]) -> None:
    """Write the table overlap.tsv: HEADER, then a row for each repository."""
    write_table(path, HEADER, (overlap.row() for overlap in overlaps))


def read_overlaps(path: Path) -> list[tuple[str, ...]]:
    """Return the rows of such a table, without its header. Raise UserError if it is damaged."""
    rows = read_table(path, HEADER, remedy="run scripts/funnel/find_overlap.py again")
    return [row for _, row in rows]


def overlapping_tasks(overlaps: Iterable[Overlap]) -> Mapping[str, str]:
    """Instance id of every task in a shared repository -> `file` if it edits a shared file, else `repository`."""
    found: dict[str, str] = {}
    for overlap in overlaps:
        found |= dict.fromkeys(overlap.training_tasks, "repository")
        found |= dict.fromkeys(overlap.on_shared_files, "file")
    return found
