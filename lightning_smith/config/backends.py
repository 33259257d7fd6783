"""Which implementation serves a stage: the one place that reads `backends` of the configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lightning_smith.core.errors import UserError

AVAILABLE: dict[str, frozenset[str]] = {
    "hub": frozenset({"folder", "huggingface"}),
    "images": frozenset({"docker", "local"}),
    "workspace": frozenset({"bwrap", "docker"}),
    "tests": frozenset({"image", "smith"}),
    "runner": frozenset({"local"}),
    "policy": frozenset({"torch"}),
    "trainer": frozenset({"torch"}),
    "harness": frozenset({"bwrap", "docker"}),
}
"""Implementations that this version has, by key of `backends`."""

ON_CLUSTERS = frozenset({"pod", "k8s", "vllm", "verl"})
"""Implementations that no laptop can have."""

USED_BY: dict[str, tuple[str, ...]] = {
    "download_shard": ("hub",),
    "download_verified": ("hub",),
    "list_branches": ("images",),
    "validate_tasks": ("images", "workspace"),
    "find_references": ("images", "workspace"),
    "probe": ("images", "workspace", "runner", "policy"),
    "train_segment": ("images", "workspace", "runner", "policy", "trainer"),
    "predict": ("images", "workspace", "runner", "policy"),
    "grade": ("images", "harness"),
    "grade_control": ("images", "harness"),
}
"""Keys of `backends` that the rules with a choice depend on."""


def need(backend: str, rules: Iterable[str], backends: Mapping[str, str]) -> bool:
    """Return whether one of these rules runs commands in `bwrap` or `docker` on this machine."""
    keys = ("workspace", "harness")
    return any(backends[key] == backend for rule in rules for key in USED_BY.get(rule, ()) if key in keys)


def missing_backends(rules: Iterable[str], backends: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    """Configured backends (key, value) of these rules that this version lacks, with the rules that use them."""
    missing: dict[tuple[str, str], list[str]] = {}
    for rule in sorted(set(rules)):
        for key in USED_BY.get(rule, ()):
            if backends[key] not in AVAILABLE[key]:
                missing.setdefault((key, backends[key]), []).append(rule)
    return missing


def refuse_missing(rules: Iterable[str], backends: Mapping[str, str]) -> None:
    """Raise UserError for the first rule about to run whose configured backend this version lacks."""
    for (key, value), (rule, *_) in missing_backends(rules, backends).items():
        raise UserError(
            f"rule {rule} is configured with backends.{key}={value}, which this version does not have there (it has "
            f"{' and '.join(sorted(AVAILABLE[key]))}): run the miniature with `uv run snakemake --profile mini`, or "
            f"ask for a target that stops before {rule} (uv run snakemake --list-target-rules)"
        )


def refuse_unlike(rules: Iterable[str], backends: Mapping[str, str]) -> None:
    """Raise UserError if workspaces or gradings of one kind are to run over images of another."""
    grading = sorted(rule for rule in set(rules) if "harness" in USED_BY.get(rule, ()))
    if grading and backends["tests"] != "image":
        # The evaluation set's own scripts want the history in /testbed, which trees of ours lack.
        raise UserError(
            f"rule {grading[0]} grades the miniature's tasks alone in this version (backends.tests=image): give the "
            "predictions, sample_<k>/preds.jsonl, to `python -m swebench.harness.run_evaluation`"
        )
    if grading and backends["harness"] == "docker" and backends["images"] != "docker":
        raise UserError(
            f"rule {grading[0]} is configured with backends.harness=docker and backends.images={backends['images']}: "
            "set backends.images to docker, or backends.harness to bwrap"
        )
    using = sorted(rule for rule in set(rules) if "workspace" in USED_BY.get(rule, ()))
    needed = {"bwrap": "local", "docker": "docker"}.get(backends["workspace"])
    if using and needed is not None and backends["images"] != needed:
        raise UserError(
            f"rule {using[0]} is configured with backends.workspace={backends['workspace']} and "
            f"backends.images={backends['images']}: set backends.images to {needed}, the kind of image that such "
            "workspaces run"
        )


def refuse_local(backends: Mapping[str, str]) -> None:
    """Raise UserError if the configuration has git repositories where Docker images are asked for."""
    if backends["images"] != "docker":
        raise UserError(
            "this configuration has git repositories in place of Docker images (backends.images=local): "
            "`uv run snakemake --profile mini --configfile config/mini.yaml config/mini-docker.yaml -- prepare_images` "
            "makes them of the miniature's, and `uv run snakemake --profile k8s -- prepare_images` prepares SWE-smith's"
        )


def refuse_lost_overlay(
    machines: Mapping[str, str], backends: Mapping[str, str], configfiles: Sequence[Path]
) -> None:
    """Raise UserError if --configfile has put a full-size configuration in the place of the miniature's.

    `machines` are those that a profile or --set-resources give to rules; `configfiles` all files of --configfile.
    """
    for rule in (rule for rule, machine in machines.items() if machine == "laptop"):
        for key in USED_BY.get(rule, ()):
            if backends[key] in ON_CLUSTERS and not any(file.name == "mini.yaml" for file in configfiles):
                files = " ".join(os.path.relpath(file) for file in configfiles)
                raise UserError(
                    f"rule {rule} is to run on a laptop with backends.{key}={backends[key]}: --configfile takes the "
                    "place of the miniature's own configuration, which the profile names, so write "
                    f"`--configfile config/mini.yaml {files}`".rstrip()
                )
