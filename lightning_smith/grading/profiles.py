"""The profiles of a release's repositories: how each one's tests are run and how their log is read.

`<data>/profiles.json`, made by the run, has a row for each (repo, image_name) of the release, sorted. A repository
without a profile is in it with nulls.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.grading.log_lines import OWN_FORMS, Parser, read_own
from lightning_smith.release.columns import iter_batches
from lightning_smith.repositories.catalogue import ImageCatalogue

PYTHON = "python"
OWN_PARSER = "lightning_smith.grading.statuses.read_statuses"

ProfileKey = tuple[str, str]
"""(repo, image_name)"""


@dataclass(frozen=True)
class Profile:
    """How the tests of one repository are run and read; all but the key is None without a profile."""

    repo: str
    image_name: str
    """As the release spells it."""
    language: str | None = None
    """Lower case: python, go, ..."""
    test_command: str | None = None
    """Shell command that runs the whole suite in /testbed."""
    fail_to_pass_command: str | None = None
    """The same for the FAIL_TO_PASS tests only: `{files}` stands for their files, `{names}` for their names
    with " or " between. Without either the suite cannot be narrowed."""
    log_parser: str | None = None
    """Python name of the function that reads the log."""
    line_forms: tuple[str, ...] = ()
    """Forms of lines (`log_lines.LINE_FORMS`) that it reads."""
    timeout_s: float | None = None
    """Limit of one task's test run, seconds; None: `agent.grading_timeout_s`."""
    reference_timeout_s: float | None = None
    """Limit of a run of the whole suite without a bug, seconds."""
    min_testing: bool = False
    """Whether the release was validated with a task's own test files only, not with the whole suite."""
    min_pregold: bool = False
    """Whether each task was validated against a run of its own without the bug."""
    evaluation_sets: tuple[str, ...] = ()
    """Evaluation sets that have this repository too."""

    @property
    def key(self) -> ProfileKey:
        return self.repo, self.image_name


class ProfileSource(Protocol):
    """Knows profiles and their parsers."""

    def profile(self, repo: str, image_name: str) -> Profile:
        """Return the profile; one without a language if there is none."""
        ...

    def parser(self, profile: Profile, known: Sequence[str]) -> Parser:
        """Return the function that reads its logs; `known` are the task's ids, for one that wants them."""
        ...


class ImageProfiles:
    """ProfileSource of the images under one folder: their own test command, read by the grader of rollouts."""

    def __init__(self, images: Path) -> None:
        self._catalogue = ImageCatalogue(images)

    def profile(self, repo: str, image_name: str) -> Profile:
        """UserError if there is no such image."""
        command = shlex.join(self._catalogue[image_name].test_command)
        return Profile(
            repo, image_name, PYTHON, command, f"{command} {{files}}", OWN_PARSER, OWN_FORMS, min_testing=True
        )

    def parser(self, profile: Profile, known: Sequence[str]) -> Parser:
        return partial(read_own, known=known)


def release_repositories(shards: Iterable[Path]) -> list[ProfileKey]:
    """Return every (repo, image_name) of a release, sorted."""
    found: set[ProfileKey] = set()
    for batch in iter_batches(shards, ("repo", "image_name")):
        found.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return sorted(found)


def write_profiles(path: Path, profiles: Iterable[Profile]) -> None:
    """Write the table."""
    write_json(path, [asdict(profile) for profile in sorted(profiles, key=lambda profile: profile.key)])


def read_profiles(path: Path) -> dict[ProfileKey, Profile]:
    """Return the table by key. Raise UserError if it is damaged or names a repository's image twice."""
    found: dict[ProfileKey, Profile] = {}
    rows = read_json(path)
    for row in rows if isinstance(rows, list) else [rows]:
        profile = _profile(row, path)
        if profile.key in found:
            raise UserError(
                f"{path} has {profile.repo} with {profile.image_name} twice: delete it and run again"
            )
        found[profile.key] = profile
    return found


def _profile(row: Any, path: Path) -> Profile:
    names = {field.name for field in fields(Profile)}
    if not isinstance(row, Mapping) or set(row) != names:
        raise UserError(
            f"{path} is no table of profiles: delete it and run scripts/funnel/list_profiles.py again"
        )
    lists = {name: tuple(row[name]) for name in ("line_forms", "evaluation_sets")}
    return Profile(**{**row, **lists})
