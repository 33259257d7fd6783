"""A segment of the miniature's training: services, learner, loop and manifest."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_smith.config.recipes import deciding, refuse_torch_lacks
from lightning_smith.config.stage import StageSettings
from lightning_smith.config.stages import TrainStage
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
    """Settings of a recipe's training, the step to reach, its tasks, and those that it is scored on."""

    stage: TrainStage
    step: int
    tasks: Path
    validation: Path | None = None
    max_rollouts: int = 32
    retries: int = 2

    @property
    def model(self) -> Path:
        """Hugging Face folder of the policy before training."""
        return Path(self.stage.policy.model)


def train_segment(settings: TrainSettings) -> dict[str, Any]:
    """Train up to `settings.step` and return the manifest of its checkpoint.

    If that checkpoint is whole already, nothing is started. Raise UserError for a step that is no checkpoint
    of the recipe, an asynchronous recipe, or whatever stops services, rollouts or training.
    """
    recipe = settings.stage.recipe
    recipe.require_step(settings.step)
    refuse_torch_lacks(settings.stage.name, recipe)
    inputs = _describe_inputs(settings)
    segment = _segment(settings, inputs)
    with stage_lock(segment.root, "train"):
        path = reached(segment, settings.step) or _run(settings, segment)
    return _manifest(settings, segment, path, inputs)


def _describe_inputs(settings: TrainSettings) -> dict[str, Any]:
    """Return hashes of everything outside the recipe that changes the result."""
    return {
        "model_sha256": sha256_file(settings.model / "model.safetensors"),
        "tasks_sha256": sha256_file(settings.tasks),
        "agent": settings.stage.agent.deciding(),
        "workspace": settings.stage.workspace,
        "tests": settings.stage.tests,
        "grader": GRADER_VERSION,
        "rollout_dtype": _rollout_dtype(settings.model),
        "context": settings.stage.policy.max_model_len,
    }


def _rollout_dtype(model: Path) -> str:
    architecture = str(read_json(model / "config.json")["model_type"])
    return ROLLOUT_DTYPES["moe" if architecture.endswith("moe") else "dense"]


def _segment(settings: TrainSettings, inputs: Mapping[str, Any]) -> Segment:
    root = settings_folder(
        settings.stage.work / settings.stage.name,
        {"recipe": deciding(settings.stage.recipe), **inputs},
        stage=f"train {settings.stage.name}",
    )
    return Segment(
        name=settings.stage.name,
        recipe=settings.stage.recipe,
        settings_hash=root.name,
        tasks=_instance_ids(settings.tasks),
        root=root,
        rollout_timeout_s=settings.stage.agent.deadline_s,
        validation_tasks=choose_validation(
            _instance_ids(settings.validation) if settings.validation else (),
            settings.stage.recipe,
            settings.stage.name,
        ),
        validation_temperature=settings.stage.validation_temperature,
    )


def _instance_ids(path: Path) -> tuple[str, ...]:
    return tuple(row["instance_id"] for row in read_jsonl(path))


def _run(settings: TrainSettings, segment: Segment) -> Path:
    """Start the services, train, stop them; returns the checkpoint."""
    policy = PolicyServer(
        model_dir=settings.model,
        model_name=settings.stage.recipe.policy,
        revision=f"{settings.stage.name}-{segment.settings_hash}",
        dtype=_rollout_dtype(settings.model),
        routed_experts=settings.stage.recipe.router_replay,
        max_model_len=settings.stage.policy.max_model_len,
    )
    stage_file = segment.root / "stage.json"
    StageSettings(
        tasks=_all_tasks(settings, segment).resolve(),
        images=settings.stage.images.resolve(),
        workspace=settings.stage.workspace,
        tests=settings.stage.tests,
        model=policy.model_name,
        model_revision=policy.revision,
        trajectories=(segment.root / "trajectories").resolve(),
        scratch=(segment.root / "scratch").resolve(),
        references=settings.stage.references.resolve() if settings.stage.references else None,
        agent=settings.stage.agent,
    ).write(stage_file)
    with Stack(
        segment.root,
        policy=policy,
        stage_file=stage_file,
        max_rollouts=settings.max_rollouts,
        val_temperature=settings.stage.validation_temperature,
        logs=settings.stage.logs,
    ) as stack:
        push = WeightPush(stack.gateway, stack.policy_url)
        check = image_check(read_jsonl(_all_tasks(settings, segment)), settings.stage.manifests)
        learner = GrpoLearner(settings.model, settings.stage.recipe, segment.root / "pushed", push)

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
    """Return the file that rollouts find their tasks in: the training tasks, with those of validation if there are
    any.
    """
    if settings.validation is None or not segment.validation_tasks:
        return settings.tasks
    path = segment.root / "tasks.jsonl"
    write_jsonl(path, [*read_jsonl(settings.tasks), *read_jsonl(settings.validation)])
    return path


def _manifest(
    settings: TrainSettings, segment: Segment, checkpoint: Path, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the rule declares as its output; the same for the same checkpoint."""
    state = read_json(checkpoint / "state.json")
    steps = [row for row in read_jsonl(segment.metrics_file) if row["step"] <= settings.step]
    validation = [{"step": row["step"], **row.pop("validation")} for row in steps if "validation" in row]
    return {
        "recipe": settings.stage.name,
        "step": settings.step,
        "trained_examples": settings.step * settings.stage.recipe.tasks_per_step,
        "checkpoint": str(checkpoint),
        "files": describe_files(checkpoint),
        "settings_hash": segment.settings_hash,
        "settings": asdict(settings.stage.recipe),
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
