"""A segment of the miniature's training: services, learner, loop and manifest."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_smith.config.recipes import Recipe, deciding, refuse_torch_lacks
from lightning_smith.config.stage import AgentSettings, StageSettings
from lightning_smith.core.files import read_json, read_jsonl, sha256_file, write_jsonl
from lightning_smith.core.process import stage_lock
from lightning_smith.core.work_folder import settings_folder
from lightning_smith.gateway.dispatch import Finished, RolloutRequest, dispatch
from lightning_smith.gateway.launch import PolicyServer, Stack
from lightning_smith.grading.tester import GRADER_VERSION
from lightning_smith.images.recorded import image_check
from lightning_smith.miniature.policy.precision import ROLLOUT_DTYPES
from lightning_smith.miniature.policy.trainer import GrpoLearner, WeightPush
from lightning_smith.training.checkpoint import describe_files
from lightning_smith.training.segments import Segment, choose_validation, reached, run_segment


@dataclass(frozen=True)
class TrainSettings:
    """What a segment is trained from; `work` is where runs live, `max_rollouts` how many run at once.

    `validation` holds the tasks that a recipe with `validate_every` is scored on, `validation_temperature` is what they
    are sampled at.
    """

    name: str
    recipe: Recipe
    step: int
    tasks: Path
    model: Path
    images: Path
    agent: AgentSettings
    work: Path
    context: int | None = None
    """Tokens, prompt and answer, that the policy is served with; None for all that it can hold."""
    validation: Path | None = None
    validation_temperature: float = 1.0
    logs: Path | None = None
    max_rollouts: int = 32
    retries: int = 2
    workspace: str = "bwrap"
    tests: str = "image"
    """As in `StageSettings`."""
    manifests: Path | None = None
    """Folder of the manifests of prepared images, which rollouts must have run in."""
    references: Path | None = None
    """What right code does with altered tests (`grading/references.py`)."""


def train_segment(settings: TrainSettings) -> dict[str, Any]:
    """Train up to `settings.step` and return the manifest of its checkpoint.

    If that checkpoint is whole already, nothing is started. Raises UserError for a step that is no checkpoint
    of the recipe, an asynchronous recipe, or whatever stops services, rollouts or training.
    """
    recipe = settings.recipe
    recipe.require_step(settings.step)
    refuse_torch_lacks(settings.name, recipe)
    inputs = _describe_inputs(settings)
    segment = _segment(settings, inputs)
    with stage_lock(segment.root, "train"):
        path = reached(segment, settings.step) or _run(settings, segment)
    return _manifest(settings, segment, path, inputs)


def _describe_inputs(settings: TrainSettings) -> dict[str, Any]:
    """Hashes of everything outside the recipe that changes the result."""
    return {
        "model_sha256": sha256_file(settings.model / "model.safetensors"),
        "tasks_sha256": sha256_file(settings.tasks),
        "agent": settings.agent.deciding(),
        "workspace": settings.workspace,
        "tests": settings.tests,
        "grader": GRADER_VERSION,
        "rollout_dtype": _rollout_dtype(settings.model),
        "context": settings.context,
    }


def _rollout_dtype(model: Path) -> str:
    architecture = str(read_json(model / "config.json")["model_type"])
    return ROLLOUT_DTYPES["moe" if architecture.endswith("moe") else "dense"]


def _segment(settings: TrainSettings, inputs: Mapping[str, Any]) -> Segment:
    root = settings_folder(
        settings.work / settings.name,
        {"recipe": deciding(settings.recipe), **inputs},
        stage=f"train {settings.name}",
    )
    return Segment(
        name=settings.name,
        recipe=settings.recipe,
        settings_hash=root.name,
        tasks=_instance_ids(settings.tasks),
        root=root,
        rollout_timeout_s=settings.agent.deadline_s,
        validation_tasks=choose_validation(
            _instance_ids(settings.validation) if settings.validation else (), settings.recipe, settings.name
        ),
        validation_temperature=settings.validation_temperature,
    )


def _instance_ids(path: Path) -> tuple[str, ...]:
    return tuple(row["instance_id"] for row in read_jsonl(path))


def _run(settings: TrainSettings, segment: Segment) -> Path:
    """Start the services, train, stop them; returns the checkpoint."""
    policy = PolicyServer(
        model_dir=settings.model,
        model_name=settings.recipe.policy,
        revision=f"{settings.name}-{segment.settings_hash}",
        dtype=_rollout_dtype(settings.model),
        routed_experts=settings.recipe.router_replay,
        max_model_len=settings.context,
    )
    stage_file = segment.root / "stage.json"
    StageSettings(
        tasks=_all_tasks(settings, segment).resolve(),
        images=settings.images.resolve(),
        workspace=settings.workspace,
        tests=settings.tests,
        model=policy.model_name,
        model_revision=policy.revision,
        trajectories=(segment.root / "trajectories").resolve(),
        scratch=(segment.root / "scratch").resolve(),
        references=settings.references.resolve() if settings.references else None,
        agent=settings.agent,
    ).write(stage_file)
    with Stack(
        segment.root,
        policy=policy,
        stage_file=stage_file,
        max_rollouts=settings.max_rollouts,
        val_temperature=settings.validation_temperature,
        logs=settings.logs,
    ) as stack:
        push = WeightPush(stack.gateway, stack.policy_url)
        check = image_check(read_jsonl(_all_tasks(settings, segment)), settings.manifests)
        learner = GrpoLearner(settings.model, settings.recipe, segment.root / "pushed", push)

        def run_rollouts(requests: Sequence[RolloutRequest]) -> Iterator[Finished]:
            for finished in dispatch(
                stack.gateway,
                requests,
                retries=settings.retries,
                check=stack.check,
                keep_events=True,
                agent=stack.agent,
                model=policy.model_name,
                model_revision=policy.revision,
            ):
                check(finished.record)
                yield finished

        return run_segment(segment, settings.step, learner, run_rollouts)


def _all_tasks(settings: TrainSettings, segment: Segment) -> Path:
    """The file that rollouts find their tasks in: the training tasks, with those of validation if there are any."""
    if settings.validation is None or not segment.validation_tasks:
        return settings.tasks
    path = segment.root / "tasks.jsonl"
    write_jsonl(path, [*read_jsonl(settings.tasks), *read_jsonl(settings.validation)])
    return path


def _manifest(
    settings: TrainSettings, segment: Segment, checkpoint: Path, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """What the rule declares as its output; the same for the same checkpoint."""
    state = read_json(checkpoint / "state.json")
    steps = [row for row in read_jsonl(segment.metrics_file) if row["step"] <= settings.step]
    validation = [{"step": row["step"], **row.pop("validation")} for row in steps if "validation" in row]
    return {
        "recipe": settings.name,
        "step": settings.step,
        "trained_examples": settings.step * settings.recipe.tasks_per_step,
        "checkpoint": str(checkpoint),
        "files": describe_files(checkpoint),
        "settings_hash": segment.settings_hash,
        "settings": asdict(settings.recipe),
        "inputs": dict(inputs),
        "tasks": len(segment.tasks),
        "versions": versions(),
        "metrics": {
            "reward_history": state["reward_history"],
            "rollouts": sum(row["rollouts"] for row in steps),
            "last_step": steps[-1],
            "steps": steps,
            "validation": validation,
        },
    }


def versions() -> dict[str, str]:
    """Versions of what computed the weights."""
    packages = ("lightning-smith", "torch", "transformers", "safetensors")
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in packages
    }
