"""Roll a checkpoint out on held-out tasks and write its predictions.

    predict(PredictSettings(...), tasks) -> predictions below `settings.out`

The rollouts are those of training, in the gateway's validation mode and without grading: what they leave is
a patch. A rollout that ended without submitting gives an empty patch. One that has no outcome after all
retries, because a service or the machine failed, gives no prediction at all.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from lightning_smith.config.stage import StageSettings
from lightning_smith.config.stages import PredictStage
from lightning_smith.contracts.outcome import RolloutRecord, rollout_seed
from lightning_smith.core.entry_points import AGENT_CLASS
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, sha256_file, write_atomic, write_jsonl
from lightning_smith.core.provenance import write_manifest
from lightning_smith.core.work_folder import settings_folder
from lightning_smith.evaluation.predictions import Prediction, write_predictions
from lightning_smith.gateway.dispatch import Finished, RolloutRequest
from lightning_smith.gateway.launch import PolicyServer, Stack
from lightning_smith.gateway.logged_run import run_logged
from lightning_smith.gateway.rollout_log import RolloutLog
from lightning_smith.images.recorded import image_check

GRADING_SETTINGS = ("grade", "grading_timeout_s", "audit_share", "gradings")
"""Settings of the agent that decide nothing here, since predictions are graded by a stage of their own."""

AGENT_SETTINGS = (
    "max_turns",
    "max_tokens",
    "observation_chars",
    "command_timeout_s",
    "rollout_timeout_s",
    "max_format_errors",
    "max_blocked",
    "thinking",
    "grade_unsubmitted",
)
"""Limits of the agent that go into the settings of a results table, by their names in `agent` of
config.yaml."""


@dataclass(frozen=True)
class PredictSettings:
    """Settings of an evaluation's predictions, the checkpoint's step and its server, and where they go.

    `stage.work` holds what is big or live: the log, patches, trajectories, services' logs.
    """

    stage: PredictStage
    step: int
    policy: PolicyServer
    dataset_file: Path
    out: Path
    max_rollouts: int = 32
    retries: int = 2
    agent_class: str = AGENT_CLASS
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.stage.work / self.stage.recipe / f"step_{self.step}"

    @property
    def logs(self) -> Path:
        return self.stage.logs / f"{self.stage.recipe}_{self.step}"

    def shown(self) -> dict[str, Any]:
        """Return the settings that a score depends on: equal for all rows of one results table."""
        agent = asdict(self.stage.agent)
        templates = {key: value for key, value in agent.items() if key.endswith("_template")}
        return {
            **{key: agent[key] for key in AGENT_SETTINGS},
            "templates_sha256": hash_json(templates),
            "temperature": self.stage.evaluation.temperature,
            "context": self.stage.policy.max_model_len,
            "seed": self.stage.evaluation.seed,
        }


def predict(settings: PredictSettings, tasks: Sequence[Mapping[str, Any]]) -> list[RolloutRecord]:
    """Roll out every task `samples` times and write predictions; goes on from the log of an interrupted run.

    Writes `sample_<k>/preds.jsonl` and `sample_<k>/rollouts.jsonl` below `settings.out`, and `run.json`,
    which says what they were made with, last. Raise UserError if services die or too many rollouts have no
    outcome.
    """
    ids = [task["instance_id"] for task in tasks]
    dataset_sha256 = sha256_file(settings.dataset_file)
    stage = f"predict {settings.stage.recipe} step {settings.step}"
    work = settings_folder(settings.work, _deciding(settings, dataset_sha256), stage=stage)
    log, patches = RolloutLog(work / "rollouts.jsonl"), Patches(work / "patches")
    patches.require(log.records())
    records = run_logged(
        stage,
        make_requests(settings, ids),
        log,
        lambda: _stack(settings, work, tasks),
        retries=settings.retries,
        max_invalid_fraction=settings.stage.evaluation.max_invalid_fraction,
        on_finished=patches.keep,
        check_record=image_check(tasks, settings.stage.manifests),
    )
    for sample in range(settings.stage.evaluation.samples):
        mine = [record for record in records if record.sample == sample]
        folder = settings.out / f"sample_{sample}"
        write_jsonl(folder / "rollouts.jsonl", (record.to_dict() for record in mine))
        write_predictions(folder / "preds.jsonl", make_predictions(settings, mine, patches))
    write_manifest(settings.out / "run.json", run_summary(settings, ids, dataset_sha256))
    return records


def make_requests(settings: PredictSettings, instance_ids: Sequence[str]) -> list[RolloutRequest]:
    """Return all rollouts, sample by sample; each has a seed of its own that a resumed run gives it again."""
    deadline_s = settings.stage.agent.deadline_s
    return [
        RolloutRequest(
            instance_id=instance_id,
            sample=sample,
            seed=rollout_seed(settings.stage.evaluation.seed, instance_id, sample, stage="predict"),
            is_train=False,
            grade=False,
            timeout_s=deadline_s,
        )
        for sample in range(settings.stage.evaluation.samples)
        for instance_id in instance_ids
    ]


def make_predictions(
    settings: PredictSettings, records: Sequence[RolloutRecord], patches: Patches
) -> list[Prediction]:
    """Predictions of valid rollouts; those that left no patch have an empty one, invalid ones are left out."""
    model = f"{settings.policy.model_name}-{settings.stage.recipe}-step-{settings.step}"
    return [
        Prediction(record.instance_id, model, patches.read(record) if _left_patch(record) else b"")
        for record in records
        if record.valid
    ]


def _left_patch(record: RolloutRecord) -> bool:
    """Return whether a rollout's answer is a patch: it submitted, even nothing, or what it had changed at a limit
    counts.
    """
    return record.outcome is None or (record.valid and record.patch_sha256 is not None)


class Patches:
    """Patches of rollouts, one file each, written before the rollout's record is logged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, finished: Finished) -> None:
        """Store the patch of a rollout that has one. Raise UserError if it did not report it."""
        record = finished.record
        if not _left_patch(record):
            return
        if finished.model_patch is None:
            raise UserError(
                f"the rollout of {record.instance_id} sample {record.sample} has a patch and did not report "
                "it: see the controller's log"
            )
        write_atomic(self._path(record), finished.model_patch)

    def read(self, record: RolloutRecord) -> bytes:
        """Return the patch's bytes. Raise UserError if they are not those that the rollout's record names."""
        path = self._path(record)
        if not path.exists():
            raise UserError(f"{path} is gone: delete {self.folder.parent} and run the same command again")
        patch = path.read_bytes()
        if record.patch_sha256 not in (None, hashlib.sha256(patch).hexdigest()):
            raise UserError(
                f"{path} is not the patch that the rollout reported: delete {self.folder.parent} and run "
                "the same command again"
            )
        return patch

    def require(self, records: Sequence[RolloutRecord]) -> None:
        """Raise UserError if a patch of a logged rollout is missing or damaged, before anything is
        started."""
        for record in records:
            if _left_patch(record):
                self.read(record)

    def _path(self, record: RolloutRecord) -> Path:
        return self.folder / f"{record.instance_id}.{record.sample}.diff"


def run_summary(
    settings: PredictSettings, instance_ids: Sequence[str], dataset_sha256: str
) -> dict[str, Any]:
    """Return what run.json says: which rollouts were planned, and what they were made with."""
    return {
        "recipe": settings.stage.recipe,
        "step": settings.step,
        "model": settings.policy.model_name,
        "model_revision": settings.policy.revision,
        "dataset": settings.stage.evaluation.dataset,
        "dataset_sha256": dataset_sha256,
        "samples": settings.stage.evaluation.samples,
        "settings": settings.shown(),
        "versions": {"agentlightning": metadata.version("agentlightning")},
        "machine": describe_machine(),
        "instance_ids": list(instance_ids),
    }


def describe_machine() -> str:
    """Cores, architecture and memory of this machine, in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} {platform.machine()} cores, {memory:.0f} GiB of memory"


def _deciding(settings: PredictSettings, dataset_sha256: str) -> dict[str, Any]:
    """Return the settings that decide what a rollout leaves.

    The number of instances and samples is left out, so that a larger evaluation goes on from a smaller one, and so is
    what only rollouts with tests read.
    """
    agent = asdict(settings.stage.agent)
    return {
        "policy": settings.policy.deciding(),
        "dataset_sha256": dataset_sha256,
        "temperature": settings.stage.evaluation.temperature,
        "context": settings.stage.policy.max_model_len,
        "seed": settings.stage.evaluation.seed,
        "agent": {name: value for name, value in agent.items() if name not in GRADING_SETTINGS},
        "agent_class": settings.agent_class,
        "workspace": settings.stage.workspace,
    }


def _stack(settings: PredictSettings, work: Path, tasks: Sequence[Mapping[str, Any]]) -> Stack:
    return Stack(
        work,
        policy=settings.policy,
        stage_file=_write_stage_file(settings, work, tasks),
        max_rollouts=settings.max_rollouts,
        val_temperature=settings.stage.evaluation.temperature,
        logs=settings.logs,
        agent=settings.agent_class,
        environment=dict(settings.environment),
    )


def _write_stage_file(settings: PredictSettings, work: Path, tasks: Sequence[Mapping[str, Any]]) -> Path:
    """Write what the agents read; neither gold patches nor tests are in it."""
    rows = work / "tasks.jsonl"
    write_jsonl(rows, (agent_task(task) for task in tasks))
    path = work / "stage.json"
    stage = StageSettings(
        tasks=rows.resolve(),
        images=settings.stage.images.resolve(),
        workspace=settings.stage.workspace,
        model=settings.policy.model_name,
        agent=settings.stage.agent,
        model_revision=settings.policy.revision,
        trajectories=(work / "trajectories").resolve(),
        scratch=(work / "scratch").resolve(),
    )
    stage.write(path)
    return path


def agent_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a held-out row in the columns of training tasks, without its solution and its tests."""
    return {
        "instance_id": task["instance_id"],
        "patch": "",
        "FAIL_TO_PASS": [],
        "PASS_TO_PASS": [],
        "image_name": task["image"],
        "repo": task["repo"],
        "problem_statement": task["problem_statement"],
    }
