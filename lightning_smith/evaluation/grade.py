"""Grade the predictions of a checkpoint, or the gold and empty patches as a control of the grading itself.

grade(GradeSettings(...), tasks, run) -> counts, with report.json, verdicts.jsonl and counts.json on the
disk control("gold", settings, tasks, out)
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_smith.contracts.outcome import Ending, RolloutRecord, unsubmitted_share, warn_unsubmitted
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl, sha256_file, write_json
from lightning_smith.core.provenance import write_manifest
from lightning_smith.evaluation.counts import (
    Verdict,
    count_categories,
    count_outcomes,
    suspicious,
    write_verdicts,
)
from lightning_smith.evaluation.harness import (
    CrossCheck,
    Execute,
    Graded,
    OfficialRun,
    Scan,
    harness_name,
    make_verdicts,
    open_run,
)
from lightning_smith.evaluation.predictions import Prediction, read_predictions


@dataclass(frozen=True)
class GradeSettings:
    """Where the tests run and for how long; `work` gets the official runner's folders.

    `cross_check` asks the grader of training about each patch, and `scan` looks for what forging results takes.
    `executor` names the sandbox in tables, `versions` say what else of it and of both decides a verdict.
    `timeout_s` limits the tests of one instance. If the machine keeps more than `max_invalid_fraction` of
    the patches from being graded, the stage fails instead of counting errors.
    """

    work: Path
    execute: Execute
    executor: str
    timeout_s: float
    cross_check: CrossCheck | None = None
    scan: Scan | None = None
    workers: int = 2
    retries: int = 2
    max_invalid_fraction: float = 0.02
    versions: Mapping[str, Any] = field(default_factory=dict)

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide a verdict, beside tasks, predictions and harness."""
        return {"timeout_s": self.timeout_s, "executor": self.executor, **self.versions}


def read_run(folder: Path, tasks_file: Path) -> dict[str, Any]:
    """run.json of a prediction folder. Raise UserError if its rollouts were of another data set."""
    run = read_json(folder / "run.json")
    found = sha256_file(tasks_file)
    if run["dataset_sha256"] != found:
        raise UserError(
            f"{folder} was predicted on a data set with sha256 {run['dataset_sha256'][:12]} and "
            f"{tasks_file} has {found[:12]}: predict again"
        )
    return run


def planned_tasks(tasks: Sequence[dict[str, Any]], instance_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows that a run planned to solve, in its order. Raise UserError for one that the data set
    lacks."""
    by_id = {task["instance_id"]: task for task in tasks}
    if absent := [instance_id for instance_id in instance_ids if instance_id not in by_id]:
        raise UserError(f"the data set lacks {absent[0]}, which was predicted: predict again")
    return [by_id[instance_id] for instance_id in instance_ids]


def grade(
    settings: GradeSettings, tasks: Sequence[dict[str, Any]], run: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Grade every sample of the predictions in `folder`; returns what counts.json says, which is written
    last.

    `tasks` are the planned rows, `run` is run.json. Raise UserError if the categories of all verdicts do
    not sum to instances x samples.
    """
    verdicts: list[Verdict] = []
    results: list[Graded] = []
    endings: dict[tuple[str, int], Ending | None] = {}
    run_ids = []
    for sample in range(run["samples"]):
        part = folder / f"sample_{sample}"
        predictions = read_predictions(part / "preds.jsonl", run["instance_ids"])
        records = read_records(part / "rollouts.jsonl")
        label = f"{run['recipe']}-step-{run['step']}-sample-{sample}"
        official = OfficialRun(
            settings.work,
            open_run(settings.work, label, tasks, predictions, **settings.deciding()),
            tasks,
            predictions,
            execute=settings.execute,
            cross_check=settings.cross_check,
            scan=settings.scan,
            timeout_s=settings.timeout_s,
            retries=settings.retries,
        )
        graded = official.grade(workers=settings.workers, label=f"grade {label}")
        report = official.report()
        write_json(part / "report.json", report)
        run_ids.append(official.run_id)
        results += graded.values()
        endings |= {(record.instance_id, sample): record.ending for record in records.values()}
        verdicts += make_verdicts(report, graded, records, sample)
    refuse_ungraded(results, settings)
    counts = count_categories(verdicts, instances=len(tasks), samples=run["samples"])
    summary = {
        "recipe": run["recipe"],
        "step": run["step"],
        "dataset": run["dataset"],
        "dataset_sha256": run["dataset_sha256"],
        "instances": len(tasks),
        "samples": run["samples"],
        "counts": counts,
        "suspicious": len(suspicious(verdicts)) if settings.scan else None,
        "outcomes": count_outcomes(verdicts),
        "resolved_unsubmitted": unsubmitted_share(
            endings.get((verdict.instance_id, verdict.sample)) for verdict in verdicts if verdict.resolved
        ),
        "harness": harness_name(),
        "executor": settings.executor,
        "harness_timeout_s": settings.timeout_s,
        "run_ids": run_ids,
        "disagreements": disagreements(verdicts),
        "rollouts": {key: value for key, value in run.items() if key != "instance_ids"},
    }
    if warning := warn_unsubmitted(summary["resolved_unsubmitted"]):
        print(f"[grade {run['recipe']} step {run['step']}] {warning}", file=sys.stderr, flush=True)
    write_verdicts(folder / "verdicts.jsonl", verdicts)
    return write_manifest(folder / "counts.json", summary)


def refuse_ungraded(results: Collection[Graded], settings: GradeSettings) -> None:
    """Raise UserError if the machine kept too many patches from being graded; the others stay graded."""
    invalid = [result for result in results if not result.valid]
    if len(invalid) > settings.max_invalid_fraction * len(results):
        raise UserError(
            f"{len(invalid)} of {len(results)} patches could not be graded (allowed: "
            f"{settings.max_invalid_fraction:.1%}), one because {invalid[-1].reason}: remedy that and run "
            "the same command again, which grades only these"
        )


def read_records(path: Path) -> dict[str, RolloutRecord]:
    """Rollout records of one sample, by instance."""
    records = [RolloutRecord.from_dict(row) for row in read_jsonl(path)]
    return {record.instance_id: record for record in records}


def disagreements(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return where the grader of training and the official one differ on the same test run."""
    return [
        {
            "instance_id": verdict.instance_id,
            "sample": verdict.sample,
            "official": verdict.category.value,
            "ours": verdict.ours.value,
        }
        for verdict in verdicts
        if verdict.disputed and verdict.ours is not None
    ]


Control = Literal["gold", "empty"]


def control(
    kind: Control, settings: GradeSettings, tasks: Sequence[dict[str, Any]], dataset_sha256: str, out: Path
) -> dict[str, Any]:
    """Grade the gold patches, or no patch at all, with the code that grades predictions; writes a summary
    to `out`.

    Every gold patch must resolve its instance, and without a patch none may: `failed` lists the exceptions.
    """
    predictions = {
        task["instance_id"]: Prediction(
            task["instance_id"], kind, task["patch"].encode() if kind == "gold" else b""
        )
        for task in tasks
    }
    official = OfficialRun(
        settings.work,
        open_run(settings.work, f"control-{kind}", tasks, predictions, **settings.deciding()),
        tasks,
        predictions,
        execute=settings.execute,
        cross_check=settings.cross_check,
        scan=settings.scan,
        timeout_s=settings.timeout_s,
        retries=settings.retries,
        grade_empty=True,
    )
    graded = official.grade(workers=settings.workers, label=f"control {kind}")
    refuse_ungraded(graded.values(), settings)
    wanted = kind == "gold"
    summary = {
        "control": kind,
        "instances": len(tasks),
        "resolved": sum(result.resolved for result in graded.values()),
        "failed": sorted(
            key for key, result in graded.items() if result.resolved != wanted or not result.valid
        ),
        "errors": {key: result.reason for key, result in sorted(graded.items()) if result.reason},
        "suspicious": {key: list(result.hits) for key, result in sorted(graded.items()) if result.hits},
        "disagreements": {
            key: result.ours.outcome.value
            for key, result in sorted(graded.items())
            if result.ours and result.disputed
        },
        "dataset_sha256": dataset_sha256,
        "harness": harness_name(),
        "executor": settings.executor,
        "run_id": official.run_id,
    }
    return write_manifest(out, summary)
