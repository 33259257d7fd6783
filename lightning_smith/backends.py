"""Which implementation serves a stage: the one place that reads `backends` of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_smith.errors import UserError

if TYPE_CHECKING:
    from lightning_smith.rollout.validate import Rooms
    from lightning_smith.tasks.profiles import ProfileSource

AVAILABLE: dict[str, frozenset[str]] = {
    "hub": frozenset({"folder", "huggingface"}),
    "images": frozenset({"docker", "local"}),
    "workspace": frozenset({"bwrap"}),
    "runner": frozenset({"local"}),
    "policy": frozenset({"torch"}),
    "trainer": frozenset({"torch"}),
    "harness": frozenset({"bwrap"}),
}
"""Implementations that this version has, by key of `backends`."""

USED_BY: dict[str, tuple[str, ...]] = {
    "download_shard": ("hub",),
    "download_verified": ("hub",),
    "list_branches": ("images",),
    "validate_tasks": ("images", "workspace"),
    "probe": ("images", "workspace", "runner", "policy"),
    "train_segment": ("images", "workspace", "runner", "policy", "trainer"),
    "predict": ("images", "workspace", "runner", "policy"),
    "grade": ("images", "harness"),
    "grade_control": ("images", "harness"),
}
"""Keys of `backends` that the rules with a choice depend on."""


def need_sandbox(rules: Iterable[str], backends: Mapping[str, str]) -> bool:
    """Whether one of these rules runs something in bubblewrap on this machine."""
    return any(
        backends[key] == "bwrap"
        for rule in rules
        for key in USED_BY.get(rule, ())
        if key in ("workspace", "harness")
    )


def refuse_missing(rules: Iterable[str], backends: Mapping[str, str]) -> None:
    """Raise UserError for the first rule about to run whose configured backend this version lacks."""
    for rule in sorted(set(rules)):
        for key in USED_BY.get(rule, ()):
            if backends[key] not in AVAILABLE[key]:
                have = " and ".join(sorted(AVAILABLE[key]))
                raise UserError(
                    f"rule {rule} is configured with backends.{key}={backends[key]}, which this version does not "
                    f"have (it has {have}): run the miniature with `uv run snakemake --profile mini`, or ask for a "
                    f"target that stops before {rule} (snakemake --list-target-rules)"
                )


def profile_source(images_backend: str, images: Path) -> ProfileSource:
    """Who knows how a repository's tests are run: the local images themselves, or SWE-smith's registry.

    Raises UserError where swesmith is wanted and not installed.
    """
    if images_backend == "local":
        from lightning_smith.tasks.profiles import ImageProfiles

        return ImageProfiles(images)
    try:
        from lightning_smith.tasks.smith_profiles import SmithProfiles
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not in this environment: run the script with `uv run --frozen --project envs/smith`"
        ) from None
    return SmithProfiles()


def validation_rooms(workspace: str, images: Path, *, timeout_s: float, scratch: Path) -> Rooms:
    """Workspaces and grader for `validate_tasks`; `timeout_s` as in `grading.run_tests`.

    Raises UserError for a kind of workspace that this version does not have.
    """
    if workspace != "bwrap":
        raise UserError(
            f"tasks cannot be validated with backends.workspace={workspace}: this version does it with bwrap alone"
        )
    from lightning_smith.rollout.validate import LocalRooms

    return LocalRooms(images, timeout_s=timeout_s, scratch=scratch)
