"""The difficulty probe: a few rollouts of every drawn task with the policy before training.

tasks = draw_tasks(read_ids(candidates), count, seed)[shard::shards]
run_probe(ProbeSettings(...), tasks) -> records, one a (task, sample), from the durable log
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_smith.config.stage import StageSettings
from lightning_smith.config.stages import ProbeStage
from lightning_smith.contracts.outcome import RolloutRecord, rollout_seed
from lightning_smith.core.entry_points import AGENT_CLASS
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, sha256_file, write_jsonl
from lightning_smith.core.work_folder import require_rows, settings_folder
from lightning_smith.gateway.dispatch import RolloutRequest
from lightning_smith.gateway.launch import PolicyServer, Stack
from lightning_smith.gateway.logged_run import run_logged
from lightning_smith.gateway.rollout_log import RolloutLog
from lightning_smith.grading.tester import GRADER_VERSION
from lightning_smith.images.recorded import image_check
from lightning_smith.probe.draw import Draw, seeded_order
from lightning_smith.probe.rows import select_rows
from lightning_smith.probe.select import judge_all, refuse_lost


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of a probe, its file of candidates, and the server of its policy.

    `stage.work` gets a folder for each combination of `deciding` settings: log, trajectories, scratch trees.
    """

    stage: ProbeStage
    tasks: Path
    policy: PolicyServer
    max_rollouts: int = 32
    retries: int = 2
    agent: str = AGENT_CLASS
    environment: dict[str, str] = field(default_factory=dict)

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide what a rollout's record says, beside its task."""
        stage = self.stage
        return {
            "policy": self.policy.deciding(),
            "temperature": stage.probe.temperature,
            "seed": stage.probe.seed,
            "agent": stage.agent.deciding(),
            "agent_class": self.agent,
            "workspace": stage.workspace,
            "tests": stage.tests,
            "grader": GRADER_VERSION,
        }


def draw_tasks(instance_ids: Sequence[str], count: int | None, seed: int) -> list[str]:
    """`count` instances (None: all) in a seeded order; a higher count only adds to a lower one.

    Raise UserError if there are fewer.
    """
    if count is not None and count > len(instance_ids):
        raise UserError(f"{count} tasks are to be probed, but there are {len(instance_ids)} candidates")
    return seeded_order(instance_ids, seed, Draw.PROBED)[:count]


def probe_requests(tasks: Sequence[str], samples: int, seed: int, timeout_s: int) -> list[RolloutRequest]:
    """Return all rollouts of a probe, sample by sample, so that a killed run has seen as many tasks as possible.

    The gateway's train mode gives the probe its temperature, and no reward is read from it.
    """
    return [
        RolloutRequest(
            instance_id=task,
            sample=sample,
            seed=rollout_seed(seed, task, sample, stage="probe"),
            is_train=True,
            grade=True,
            timeout_s=timeout_s,
        )
        for sample in range(samples)
        for task in tasks
    ]


def run_probe(settings: ProbeSettings, tasks: Sequence[str]) -> list[RolloutRecord]:
    """Probe these tasks, going on from the log of these settings; one record a (task, sample), sorted.

    Raise UserError if the log is of other rows of these tasks, if services die, or if more tasks than allowed
    lack rollouts with a verdict.
    """
    stage, probe = settings.stage, settings.stage.probe
    requests = probe_requests(tasks, probe.samples, probe.seed, stage.agent.deadline_s)
    rows = select_rows(settings.tasks, list(tasks))
    work = settings_folder(stage.work, settings.deciding(), stage="probe")
    require_rows(work, {row["instance_id"]: hash_json(row) for row in rows})

    def start() -> Stack:
        return Stack(
            work,
            policy=settings.policy,
            stage_file=write_stage_file(settings, work, rows),
            max_rollouts=settings.max_rollouts,
            train_temperature=probe.temperature,
            logs=stage.logs,
            agent=settings.agent,
            environment=settings.environment,
        )

    log = RolloutLog(work / "rollouts.jsonl")
    # A task is lost with one of its rollouts, so what is allowed is a part of the tasks.
    records = run_logged(
        "probe",
        requests,
        log,
        start,
        retries=settings.retries,
        max_invalid_fraction=1.0,
        check_record=image_check(rows, stage.manifests),
    )
    refuse_lost(judge_all(records, probe.samples), records, probe.max_invalid_fraction)
    return records


def write_stage_file(settings: ProbeSettings, work: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write the probed rows and the settings that all agents read; returns the settings' path."""
    tasks = work / "tasks.jsonl"
    write_jsonl(tasks, rows)
    path, stage = work / "stage.json", settings.stage
    StageSettings(
        tasks=tasks.resolve(),
        images=stage.images.resolve(),
        workspace=stage.workspace,
        tests=stage.tests,
        model=settings.policy.model_name,
        agent=stage.agent,
        model_revision=settings.policy.revision,
        trajectories=(work / "trajectories").resolve(),
        scratch=(work / "scratch").resolve(),
        references=stage.references.resolve() if stage.references else None,
    ).write(path)
    return path


def folder_revision(model_dir: Path) -> str:
    """Revision of a policy kept in a folder: a hash over its configuration, tokenizer and weights.

    Raise UserError if the folder holds no weights.
    """
    files = sorted(path for path in model_dir.glob("*") if path.suffix in (".json", ".jinja", ".safetensors"))
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"{model_dir} holds no *.safetensors: it is not a Hugging Face folder of a policy")
    hashes = {path.name: sha256_file(path) for path in files if path.name != "recipe.json"}
    return "sha256:" + hash_json(hashes)[:16]
