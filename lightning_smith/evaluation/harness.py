"""Official grading without Docker: swebench judges, a sandbox of ours runs the tests.

swebench's own runner starts a container, applies the patch, runs `/bin/bash /eval.sh`, saves what it prints
and reads that. Here an `Execute` function does the first three in bubblewrap; everything that decides is
swebench's: `make_test_spec` (which adds the exit code that its reader cross-checks), `get_eval_report` and
`make_run_report`. The files of a run lie where the official runner puts them, below
`<folder>/logs/run_evaluation/<run id>/`, with its run.json and, beside that, the tasks and the predictions. So swebench
itself can judge the logs again, without a container (its program asks for a Docker daemon all the same):

    cd <folder> && python -m swebench.harness.run_evaluation --rewrite_reports true --run_id <run id> \
        --dataset_name logs/run_evaluation/<run id>/tasks.jsonl \
        --predictions_path logs/run_evaluation/<run id>/preds.jsonl

It counts what we do, but for tests that ran out of time: those are errors here and in its own runs, and unresolved once
it judges their logs again. `swebench report <run id>` of version 5.0.2 takes every run for one of gold patches: it
reads the control with gold patches, and of predictions it counts every instance as an error.

The run id holds a hash of the predictions, the tasks and the harness: a verdict of another patch is never
read. What is graded stays graded: a second run continues, and repeats only what failed for reasons of the
machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import locale
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, read_json, write_atomic, write_json
from lightning_smith.core.progress import Progress
from lightning_smith.core.work_folder import settings_folder
from lightning_smith.evaluation.counts import Category, Verdict
from lightning_smith.evaluation.predictions import Prediction, predictions_hash, write_predictions

RUNS = "logs/run_evaluation"
"""Where the official runner puts its runs."""

FAILURE_FILE = "failure.json"
"""Written beside the official files where the official runner leaves no report although the patch is at
fault."""

OURS_FILE = "ours.json"
"""The verdict of the grader of training, written beside the official files."""

HITS_FILE = "hits.json"
"""What the scan finds in the patch, written beside the official files."""

PATCH_FAILED = "the patch does not apply"
TIMED_OUT = "the tests ran out of time"
NOT_RUN = "the tests could not be run"


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of an instance's tests.

    `log` is what the eval script printed, stdout and stderr in their order; with `applied` False it is what
    the last attempt to apply the patch printed, and no test ran.
    """

    log: bytes
    applied: bool
    timed_out: bool
    seconds: float


class ExecutionError(Exception):
    """The tests could not be run, for a reason that says nothing about the patch."""


Execute = Callable[[Mapping[str, Any], str, bytes], Execution]
"""Runs a task's eval script on its tree with a patch: (row, eval script, patch). Raise ExecutionError."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the grader of training makes of a patch, and whether it has tested it itself or read the official log."""

    outcome: Outcome
    tested: bool


CrossCheck = Callable[[Mapping[str, Any], bytes, Execution, bool], Answer | None]
"""Asks the grader of training about a patch: (row, patch, its execution, whether it resolved officially)."""


Scan = Callable[[Mapping[str, Any], bytes], Sequence[str]]
"""Scans a patch of a task for what forging results takes: (row, patch). Raise ExecutionError."""


@dataclass(frozen=True, slots=True)
class Graded:
    """What became of one prediction that was to be graded.

    `report` is the official one, None where there is none; `reason` says why. `valid` is False if the machine
    is to blame, not the patch. `hits` are what the scan finds in it.
    """

    report: Mapping[str, Any] | None
    reason: str | None
    ours: Answer | None
    valid: bool = True
    hits: tuple[str, ...] = ()

    @property
    def resolved(self) -> bool:
        """The official verdict; False without a report."""
        return bool(self.report and self.report["resolved"])

    @property
    def disputed(self) -> bool:
        """Whether the grader of training disagrees."""
        return self.ours is not None and (self.ours.outcome is Outcome.SOLVED) != self.resolved


def harness_name() -> str:
    """Return the harness with its version, as it stands in tables: verdicts of different versions are not
    comparable."""
    return f"swebench {metadata.version('swebench')}"


def open_run(
    folder: Path,
    label: str,
    tasks: Sequence[Mapping[str, Any]],
    predictions: Mapping[str, Prediction],
    **settings: Any,
) -> str:
    """Make the folder of a run below `folder` and return its run id: `label` and a hash of all that a verdict
    depends on, which are predictions, tasks, the harness and the `settings`."""
    basis = {
        "predictions": predictions_hash(predictions),
        "tasks": hash_json([dict(task) for task in tasks]),
        "harness": harness_name(),
        **settings,
    }
    return settings_folder(folder / RUNS, basis, stage=f"grade {label}", label=f"{label}.").name


class OfficialRun:
    """The grading of one set of predictions; its files lie below `folder`."""

    def __init__(
        self,
        folder: Path | str,
        run_id: str,
        tasks: Sequence[Mapping[str, Any]],
        predictions: Mapping[str, Prediction],
        *,
        execute: Execute,
        timeout_s: float,
        cross_check: CrossCheck | None = None,
        scan: Scan | None = None,
        retries: int = 2,
        grade_empty: bool = False,
    ) -> None:
        """`grade_empty` runs the tests of instances whose patch is empty too (a control of the grading)."""
        if locale.getencoding().lower() not in ("utf-8", "utf8"):
            raise UserError(
                f"swebench reads logs in the locale's encoding, which is {locale.getencoding()} here: "
                "set LC_ALL=C.UTF-8 and run the same command again"
            )
        if not predictions:
            raise UserError("there is no prediction to grade: run the predict rule again and see its log")
        self.folder, self.run_id = Path(folder), run_id
        self._tasks = {task["instance_id"]: task for task in tasks}
        self._predictions = predictions
        self._execute, self._timeout_s, self._retries = execute, timeout_s, retries
        self._cross_check, self._scan, self._grade_empty = cross_check, scan, grade_empty

    def grade(self, *, workers: int, label: str = "grade") -> dict[str, Graded]:
        """Grade every prediction that has a patch, `workers` at a time; instances without one are absent."""
        chosen = [
            instance_id
            for instance_id in self._tasks
            if instance_id in self._predictions
            and (self._grade_empty or not self._predictions[instance_id].empty)
        ]
        self._write_inputs()
        progress = Progress(label, len(chosen), unit="patches")
        graded = {}
        with ThreadPoolExecutor(max_workers=workers) as pool:
            try:
                for instance_id, result in zip(chosen, pool.map(self._grade_one, chosen), strict=True):
                    graded[instance_id] = result
                    progress.step(resolved=float(result.resolved))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        progress.close()
        return graded

    def report(self) -> dict[str, Any]:
        """Return the official summary over all tasks (its schema version 2), made by swebench from the run's
        files."""
        from swebench.harness.reporting import make_run_report

        predictions = {key: prediction.to_dict() for key, prediction in self._predictions.items()}
        tasks = [dict(task) for task in self._tasks.values()]
        # swebench looks below the working directory, and prints what the summary says.
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()):
            path = make_run_report(
                predictions, tasks, self.run_id, client=None, report_dir="summary"
            ).absolute()
        return read_json(path)

    def _write_inputs(self) -> None:
        """Leave what the official runner needs to judge this run's logs again."""
        from swebench.harness.constants import LOG_RUN_METADATA

        run = Path(RUNS) / self.run_id
        # In ASCII: swebench splits lines at every character that Unicode calls a line's end.
        rows = "".join(json.dumps(task) + "\n" for task in self._tasks.values())
        write_atomic(self.folder / run / "tasks.jsonl", rows)
        write_predictions(self.folder / run / "preds.jsonl", self._predictions.values())
        made = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"dataset": f"{run}/tasks.jsonl", "split": "test", "task_repo": None, "created_at": made}
        write_json(self.folder / run / LOG_RUN_METADATA, about)

    def _grade_one(self, instance_id: str) -> Graded:
        folder = self._instance_folder(instance_id)
        known = self._known(folder, instance_id)
        if known is not None:
            return known
        error = ""
        for _ in range(1 + self._retries):
            try:
                return self._run(folder, instance_id)
            except ExecutionError as failure:
                error = str(failure)
        write_atomic(folder / "run_instance.log", f"{NOT_RUN}: {error}\n")
        return Graded(None, f"{NOT_RUN}: {error}", None, valid=False)

    def _instance_folder(self, instance_id: str) -> Path:
        model = self._predictions[instance_id].model.replace("/", "__")
        return self.folder / RUNS / self.run_id / model / instance_id

    def _known(self, folder: Path, instance_id: str) -> Graded | None:
        """Return the verdict of an earlier run with this run id."""
        ours_file = folder / OURS_FILE
        ours = None
        if ours_file.exists():
            answer = read_json(ours_file)
            ours = Answer(Outcome(answer["outcome"]), answer["tested"])
        hits_file = folder / HITS_FILE
        hits = tuple(read_json(hits_file)) if hits_file.exists() else ()
        if (folder / FAILURE_FILE).exists():
            return Graded(None, read_json(folder / FAILURE_FILE)["reason"], None, hits=hits)
        if (folder / "report.json").exists():
            return Graded(read_json(folder / "report.json")[instance_id], None, ours, hits=hits)
        return None

    def _run(self, folder: Path, instance_id: str) -> Graded:
        """Run the tests once and leave the files that the official runner would leave."""
        from swebench.harness.constants import APPLY_PATCH_FAIL, APPLY_PATCH_PASS
        from swebench.harness.grading import get_eval_report
        from swebench.harness.utils import make_test_spec

        task, prediction = self._tasks[instance_id], self._predictions[instance_id]
        spec = make_test_spec(dict(task))
        write_atomic(folder / "patch.diff", prediction.patch)
        write_atomic(folder / "eval.sh", spec.eval_script)
        execution = self._execute(task, spec.eval_script, prediction.patch)
        hits = tuple(self._scan(task, prediction.patch)) if self._scan else ()
        write_json(folder / HITS_FILE, list(hits))
        # The official runner decodes the same way and stores text.
        output = execution.log.decode("utf-8", "replace")
        if not execution.applied:
            write_atomic(folder / "run_instance.log", f"{APPLY_PATCH_FAIL}:\n{output}\n")
            return self._failed(folder, PATCH_FAILED, hits)
        log = f"{APPLY_PATCH_PASS}\nTest runtime: {execution.seconds:_.2f} seconds\n"
        write_atomic(folder / "run_instance.log", log)
        if execution.timed_out:
            output += f"\n\nTimeout error: {self._timeout_s:g} seconds exceeded."
        write_atomic(folder / "test_output.txt", output)
        if execution.timed_out:
            return self._failed(folder, TIMED_OUT, hits)
        report = get_eval_report(
            test_spec=spec,
            prediction=prediction.to_dict(),
            test_log_path=str(folder / "test_output.txt"),
            include_tests_status=True,
        )
        ours = self._ours(folder, instance_id, execution, report[instance_id]["resolved"])
        write_atomic(folder / "report.json", json.dumps(report, indent=4))
        return Graded(report[instance_id], None, ours, hits=hits)

    def _ours(self, folder: Path, instance_id: str, execution: Execution, resolved: bool) -> Answer | None:
        """Ask the grader of training, and keep its answer for a resumed run."""
        if self._cross_check is None:
            return None
        patch = self._predictions[instance_id].patch
        answer = self._cross_check(self._tasks[instance_id], patch, execution, resolved)
        if answer is not None:
            write_json(folder / OURS_FILE, {"outcome": answer.outcome.value, "tested": answer.tested})
        return answer

    @staticmethod
    def _failed(folder: Path, reason: str, hits: tuple[str, ...]) -> Graded:
        write_json(folder / FAILURE_FILE, {"reason": reason})
        return Graded(None, reason, None, hits=hits)


CATEGORY_KEYS = {
    Category.RESOLVED: "resolved_ids",
    Category.UNRESOLVED: "unresolved_ids",
    Category.EMPTY: "empty_patch_ids",
    Category.ERROR: "error_ids",
    Category.MISSING: "incomplete_ids",
}
"""Where the official summary lists the instances of each category."""


def make_verdicts(
    report: Mapping[str, Any],
    graded: Mapping[str, Graded],
    records: Mapping[str, RolloutRecord],
    sample: int,
) -> list[Verdict]:
    """Verdicts of one sample: the category is the official summary's, the outcome says how the rollout ended.

    Raise UserError if the summary puts an instance into no category or into two.
    """
    categories: dict[str, Category] = {}
    for category, key in CATEGORY_KEYS.items():
        for instance_id in report[key]:
            if instance_id in categories:
                raise UserError(
                    f"the official report counts {instance_id} as {categories[instance_id]} and as "
                    f"{category}: delete its run folder and grade again"
                )
            categories[instance_id] = category
    if len(categories) != report["total_instances"]:
        raise UserError(
            f"the official report puts {len(categories)} of {report['total_instances']} instances into a "
            "category: delete its run folder and grade again"
        )
    return [
        _verdict(instance_id, sample, category, graded.get(instance_id), records.get(instance_id))
        for instance_id, category in sorted(categories.items())
    ]


def _verdict(
    instance_id: str,
    sample: int,
    category: Category,
    graded: Graded | None,
    record: RolloutRecord | None,
) -> Verdict:
    verdict = Verdict(
        instance_id=instance_id,
        sample=sample,
        resolved=category is Category.RESOLVED,
        category=category,
        outcome=record.outcome if record else None,
        reason=graded.reason if graded else None,
        ours=graded.ours.outcome if graded and graded.ours else None,
        tested=bool(graded and graded.ours and graded.ours.tested),
        hits=graded.hits if graded else (),
    )
    match category:
        case Category.MISSING:
            return verdict
        case Category.RESOLVED:
            return replace(verdict, outcome=Outcome.SOLVED)
        case Category.EMPTY:
            # A rollout that submitted without a change has no outcome of its own yet.
            return replace(verdict, outcome=verdict.outcome or Outcome.UNSOLVED)
        case Category.ERROR if graded is None or not graded.valid:
            return replace(verdict, outcome=Outcome.GRADER_ERROR)
        case _:
            if verdict.ours is Outcome.TAMPERED:
                return replace(verdict, outcome=Outcome.TAMPERED)
            # A rollout that met a limit has its outcome, whose patch did not solve the task.
            return replace(verdict, outcome=verdict.outcome or Outcome.UNSOLVED)
