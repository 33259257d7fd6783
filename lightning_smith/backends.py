"""Which implementation serves a stage: the one place that reads `backends` of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_smith.errors import UserError

if TYPE_CHECKING:
    from lightning_smith.images.daemon import Daemon
    from lightning_smith.images.prepare import Certifier
    from lightning_smith.rollout.validate import Rooms
    from lightning_smith.tasks.profiles import ProfileSource

AVAILABLE: dict[str, frozenset[str]] = {
    "hub": frozenset({"folder", "huggingface"}),
    "images": frozenset({"docker", "local"}),
    "workspace": frozenset({"bwrap", "docker"}),
    "runner": frozenset({"local"}),
    "policy": frozenset({"torch"}),
    "trainer": frozenset({"torch"}),
    "harness": frozenset({"bwrap"}),
}
"""Implementations that this version has, by key of `backends`."""

AVAILABLE_IN: dict[tuple[str, str], frozenset[str]] = {
    # Images of the evaluation set have no branch of an instance's name, which is where a container starts.
    ("predict", "workspace"): frozenset({"bwrap"}),
}
"""Where a rule has fewer of them: by rule and key."""

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
            available = AVAILABLE_IN.get((rule, key), AVAILABLE[key])
            if backends[key] not in available:
                have = " and ".join(sorted(available))
                raise UserError(
                    f"rule {rule} is configured with backends.{key}={backends[key]}, which this version does not "
                    f"have there (it has {have}): run the miniature with `uv run snakemake --profile mini`, or ask "
                    f"for a target that stops before {rule} (snakemake --list-target-rules)"
                )


def refuse_unlike(rules: Iterable[str], backends: Mapping[str, str]) -> None:
    """Raise UserError if workspaces of one kind are to run over images of another."""
    using = sorted(rule for rule in set(rules) if "workspace" in USED_BY.get(rule, ()))
    needed = {"bwrap": "local", "docker": "docker"}.get(backends["workspace"])
    if using and needed is not None and backends["images"] != needed:
        raise UserError(
            f"rule {using[0]} is configured with backends.workspace={backends['workspace']} and "
            f"backends.images={backends['images']}: set backends.images to {needed}, the kind of image that such "
            "workspaces run"
        )


def tests_of(images_backend: str) -> str:
    """`StageSettings.tests` of a stage over these images: local ones know their tests, others are SWE-smith's."""
    return "image" if images_backend == "local" else "smith"


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


def validation_rooms(
    workspace: str, images: Path, *, tests: str, grade: str, timeout_s: float, scratch: Path
) -> Rooms:
    """Workspaces and grader for `validate_tasks`; `tests` as in `StageSettings`, `timeout_s` as in `run_tests`.

    `grade` says which of a task's tests decide, as `agent.grade` of the configuration.

    Raises UserError for a kind of workspace that this version does not have, or that cannot be had here.
    """
    from lightning_smith.rollout.kinds import open_plans, open_room
    from lightning_smith.rollout.task import Grade
    from lightning_smith.rollout.validate import TaskRooms

    room, plans = open_room(workspace, images), open_plans(tests)
    return TaskRooms(room, plans, timeout_s=timeout_s, scratch=scratch, grade=Grade(grade))


def image_certifier(
    daemon: Daemon, datasets: Sequence[Path], tasks: int, *, timeout_s: float, scratch: Path
) -> Certifier | None:
    """Who grades so many tasks of each Docker image by SWE-smith's profiles; None if that is none.

    `datasets` are SWE-smith rows, `timeout_s` is as in `run_tests`. SWE-smith's harness starts with the first image.
    """
    if tasks == 0:
        return None
    from lightning_smith.rollout.certify import Certifier
    from lightning_smith.rollout.kinds import open_plans

    plans = partial(open_plans, tests_of("docker"))
    return Certifier(daemon, datasets, tasks, plans, timeout_s=timeout_s, scratch=scratch)
