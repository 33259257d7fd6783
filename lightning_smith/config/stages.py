"""The settings of each stage of the workflow: the sections of the configuration that it reads, and where things are.

The workflow writes such an object to a file named by its content, and a rule passes the file (`settings_file.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.models import Config, Evaluation, Policy, Probe, Selection, Validation
from lightning_smith.config.recipes import Recipe
from lightning_smith.config.values import STRICT, Name, Positive, Quantity, Registry, Seconds
from lightning_smith.contracts.task import Grade
from lightning_smith.core.errors import UserError

Workspace = Literal["pod", "docker", "bwrap"]
Tests = Literal["smith", "image"]

_IMAGES = "folder of the local images"
_MANIFESTS = "folder of manifests of prepared images, compared with what rollouts record"
_REFERENCES = "what right code does with altered tests; null runs it as needed"
_WORK = "folder of what is large or live"
_LOGS = "folder of the services' logs"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class RolloutStage:
    """Settings of every stage with rollouts."""

    agent: AgentSettings
    workspace: Annotated[Workspace, Field(description="backends.workspace")]
    images: Annotated[Path, Field(description=_IMAGES)]
    work: Annotated[Path, Field(description=_WORK)]
    logs: Annotated[Path, Field(description=_LOGS)]
    manifests: Annotated[Path | None, Field(description=_MANIFESTS)] = None


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ProbeStage(RolloutStage):
    """The difficulty probe."""

    probe: Probe
    policy: Policy
    tests: Annotated[Tests, Field(description="backends.tests")]
    references: Annotated[Path | None, Field(description=_REFERENCES)] = None


@dataclass(frozen=True, config=STRICT, kw_only=True)
class TrainStage(RolloutStage):
    """Training of one recipe."""

    name: Annotated[Name, Field(description="the recipe's")]
    recipe: Recipe
    policy: Policy
    tests: Annotated[Tests, Field(description="backends.tests")]
    validation_temperature: Annotated[float, Field(description="evaluation.temperature")]
    references: Annotated[Path | None, Field(description=_REFERENCES)] = None


@dataclass(frozen=True, config=STRICT, kw_only=True)
class PredictStage(RolloutStage):
    """Predictions of one recipe's checkpoints."""

    evaluation: Evaluation
    recipe: Annotated[Name, Field(description="training recipe of the checkpoints, for names and tables")]
    policy: Policy
    policy_name: Annotated[Name, Field(description="key of the policy, its name in requests and records")]
    exports: Annotated[Path, Field(description="folder with step_<n> of every exported checkpoint")]
    dtype: Annotated[str, Field(description="of the policy server")]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class GradeStage:
    """The official grading."""

    evaluation: Evaluation
    harness: Annotated[Literal["bwrap", "docker"], Field(description="backends.harness")]
    images: Annotated[Path, Field(description=_IMAGES)]
    work: Annotated[Path, Field(description="folder for logs, reports of instances and scratch trees")]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ValidateStage:
    """Test runs of gold patches."""

    validation: Validation
    grade: Annotated[Grade, Field(description="agent.grade")]
    grading_timeout_s: Annotated[Seconds, Field(description="agent.grading_timeout_s")]
    workspace: Annotated[Workspace, Field(description="backends.workspace")]
    tests: Annotated[Tests, Field(description="backends.tests")]
    images: Annotated[Path, Field(description=_IMAGES)]
    work: Annotated[Path, Field(description="folder of live logs, one for each combination of what decides")]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ReferencesStage:
    """Right code with altered tests."""

    workspace: Annotated[Workspace, Field(description="backends.workspace")]
    tests: Annotated[Tests, Field(description="backends.tests")]
    timeout_s: Annotated[
        Seconds, Field(description="processor seconds of the tests of all tasks of an image")
    ]
    images: Annotated[Path, Field(description=_IMAGES)]
    work: Annotated[Path, Field(description="folder for the live log and scratch files")]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class SelectStage:
    """The choice of tasks."""

    selection: Selection
    samples: Annotated[int, Field(description="probe.samples: valid rollouts that a task needs")]
    max_lost_fraction: Annotated[
        float, Field(description="probe.max_invalid_fraction: tasks without rollouts enough")
    ]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ImageStage:
    """The preparation of one image of a set."""

    agent: Annotated[Path, Field(description="folder of the built layer")]
    agent_python: Annotated[str, Field(description="images.agent_python")]
    push_to: Annotated[Registry | None, Field(description="images.push_to")]
    certify_tasks: Annotated[Quantity, Field(description="images.certify_tasks, 0 for the evaluation set")]
    grading_timeout_s: Annotated[Seconds, Field(description="agent.grading_timeout_s")]
    tests: Annotated[Tests, Field(description="backends.tests")]
    tasks: Annotated[tuple[Path, ...], Field(description="SWE-smith rows that images are certified with")]
    scratch: Annotated[Path, Field(description="where trees go")]
    failures: Annotated[Path | None, Field(description="folder for the reasons why images failed")] = None


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ImageSources:
    """Where images come from; of no consequence for what they are."""

    organisations: tuple[str, ...]
    mirror: Registry | None
    min_mb_per_s: Positive


@dataclass(frozen=True, config=STRICT, kw_only=True)
class EvaluatedCheckpoint:
    """A row of the results table."""

    recipe: str
    policy: str
    step: Quantity
    folder: Annotated[Path, Field(description="with counts.json and verdicts.jsonl")]
    manifest: Annotated[Path | None, Field(description="training manifest; null before training")]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class TableStage:
    """The results table."""

    title: str
    checkpoints: tuple[EvaluatedCheckpoint, ...]
    controls: Annotated[tuple[Path, ...], Field(description="summaries of gold or empty controls")]


# ------------------------------------------------------------------------------------- made of the configuration


def probe_stage(config: Config, manifests: Path | None) -> ProbeStage:
    """Return the settings of the probe."""
    return ProbeStage(
        probe=config.probe,
        policy=config.policies[config.probe.policy],
        tests=config.backends.tests,
        references=references_of(config),
        **_rollouts(config, "probe", manifests),
    )


def train_stage(config: Config, name: str, manifests: Path | None) -> TrainStage:
    """Return the settings of a recipe's training."""
    recipe = recipe_of(config, name)
    return TrainStage(
        name=name,
        recipe=recipe,
        policy=config.policies[recipe.policy],
        tests=config.backends.tests,
        validation_temperature=config.evaluation.temperature,
        references=references_of(config),
        **_rollouts(config, "train", manifests, name),
    )


def predict_stage(
    config: Config, name: str, manifests: Path | None, dtypes: Mapping[str, str]
) -> PredictStage:
    """Return the settings of the predictions of a recipe; `dtypes` has the server's by kind of policy."""
    policy = recipe_of(config, name).policy
    return PredictStage(
        evaluation=config.evaluation,
        recipe=name,
        policy=config.policies[policy],
        policy_name=policy,
        exports=Path(config.dirs.work) / "export" / name,
        dtype=dtypes[config.policies[policy].kind],
        **_rollouts(config, "predict", manifests),
    )


def grade_stage(config: Config) -> GradeStage:
    """Return the settings of the official grading."""
    work = Path(config.dirs.work)
    return GradeStage(
        evaluation=config.evaluation,
        harness=config.backends.harness,
        images=work / "images",
        work=work / "grade",
    )


def validate_stage(config: Config) -> ValidateStage:
    """Return the settings of the test runs of gold patches."""
    work = Path(config.dirs.work)
    return ValidateStage(
        validation=config.validation,
        grade=config.agent.grade,
        grading_timeout_s=config.agent.grading_timeout_s,
        workspace=config.backends.workspace,
        tests=config.backends.tests,
        images=work / "images",
        work=work / "validation",
    )


def references_stage(config: Config) -> ReferencesStage:
    """Return the settings of the runs of right code: each run has the tests of all tasks of an image."""
    work = Path(config.dirs.work)
    return ReferencesStage(
        workspace=config.backends.workspace,
        tests=config.backends.tests,
        timeout_s=10 * config.agent.grading_timeout_s,
        images=work / "images",
        work=work / "references",
    )


def select_stage(config: Config) -> SelectStage:
    """Return the settings of the choice of tasks."""
    return SelectStage(
        selection=config.selection,
        samples=config.probe.samples,
        max_lost_fraction=config.probe.max_invalid_fraction,
    )


def image_stage(config: Config, tasks: Sequence[str]) -> ImageStage:
    """Return the settings of an image's preparation, with the tasks that it may be certified with."""
    images, work = config.images, Path(config.dirs.work)
    certified = tasks if images.certify_tasks else ()
    return ImageStage(
        agent=work / "agent",
        agent_python=images.agent_python,
        push_to=images.push_to,
        certify_tasks=images.certify_tasks if tasks else 0,
        grading_timeout_s=config.agent.grading_timeout_s,
        tests=config.backends.tests,
        tasks=tuple(map(Path, certified)),
        scratch=work / "certify",
        failures=work / "image_failures",
    )


def table_stage(config: Config, evaluated: Sequence[tuple[str, int]], controls: Sequence[str]) -> TableStage:
    """Return the settings of the results table: checkpoints that are evaluated, and summaries of controls."""
    results = Path(config.dirs.results)
    checkpoints = tuple(
        EvaluatedCheckpoint(
            recipe=name,
            policy=recipe_of(config, name).policy,
            step=step,
            folder=results / f"eval/{name}/step_{step}",
            manifest=results / f"train/{name}/step_{step}.json" if step else None,
        )
        for name, step in evaluated
    )
    title = f"Results of the experiment `{config.experiment}`"
    return TableStage(title=title, checkpoints=checkpoints, controls=tuple(map(Path, controls)))


def image_sources(config: Config) -> ImageSources:
    """Return where images come from."""
    images = config.images
    return ImageSources(
        organisations=images.organisations, mirror=images.mirror, min_mb_per_s=images.min_mb_per_s
    )


def references_of(config: Config) -> Path | None:
    """Return the reference file that gradings read: the one that a rule makes, the one that is named, or none."""
    if config.references is None:
        return None
    return Path(
        f"{config.dirs.data}/references.jsonl.gz" if config.references == "find" else config.references
    )


def recipe_of(config: Config, name: str) -> Recipe:
    """Return a configured recipe as its trainer reads it. Raise UserError if there is none of this name.

    verl gets the section `verl` with the recipe's own laid over it, another trainer neither.
    """
    recipe = config.recipes.get(name)
    if recipe is None:
        configured = ", ".join(name for name, each in config.recipes.items() if each)
        raise UserError(f"there is no recipe {name!r}: the configuration has {configured}")
    verl = {**(config.verl or {}), **(recipe.verl or {})} if config.backends.trainer == "verl" else None
    return replace(recipe, verl=verl)


def _rollouts(config: Config, stage: str, manifests: Path | None, of_logs: str = "") -> dict[str, Any]:
    work = Path(config.dirs.work)
    return {
        "agent": config.agent,
        "workspace": config.backends.workspace,
        "images": work / "images",
        "work": work / stage,
        "logs": work / "logs" / stage / of_logs,
        "manifests": manifests,
    }
