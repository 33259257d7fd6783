"""One rollout from its environment variables to its events: what the controller starts.

The controller gives AGL_OPENAI_BASE_URL with a token for it in AGL_KEY, AGL_EVENT_URL with one in LS_REPORT_TOKEN, and
from the request LS_INSTANCE_ID, LS_SAMPLE, LS_SEED and LS_GRADE; LS_STAGE_FILE names the settings of the stage. The
rollout posts

- an event `outcome` with its record, and `model_patch` (base64) where the official harness grades it;
- an event `reward` with `value`, if it was graded and the verdict says something about the policy.

What the policy does ends in an outcome, and so does any failure of the machine (`infra`). Only a rollout that
cannot post is left without events, and ends with an error.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_smith.agent.chat import ChatModel, JsonService, Message, Model
from lightning_smith.agent.loop import Episode, run_episode
from lightning_smith.agent.trajectory import trajectory, trajectory_path, write_trajectory
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import STAGE_FILE_VARIABLE, StageSettings
from lightning_smith.contracts.outcome import (
    MAX_NAMED,
    UNSUBMITTED,
    Ending,
    Outcome,
    PatchState,
    RolloutRecord,
    decide_outcome,
    reward_of,
)
from lightning_smith.contracts.task import RolloutTask, TaskFile
from lightning_smith.core.errors import UserError, unforeseen
from lightning_smith.core.text import encodable
from lightning_smith.grading.audit import Audit
from lightning_smith.grading.grader import grade
from lightning_smith.grading.open_plans import open_plans
from lightning_smith.grading.references import References
from lightning_smith.grading.store import GradeStore
from lightning_smith.repositories.revisions import Revisions
from lightning_smith.sandbox.diff import DiffRefusedError
from lightning_smith.sandbox.rooms import open_room
from lightning_smith.sandbox.scratch import Scratch
from lightning_smith.sandbox.workspace import Workspace

_OUTPUT_BYTES_PER_CHARACTER = 4
"""The most that UTF-8 takes, so that what the workspace keeps of an output always fills an observation."""
_CONTROL_TIMEOUT_S = 60.0


class Stage:
    """What all rollouts of a stage share, opened and checked once.

    Raise UserError if the tasks, one of their images, the testbed or the sandbox are missing.
    """

    def __init__(self, settings: StageSettings) -> None:
        self.settings = settings
        self.tasks = TaskFile(settings.tasks)
        self.room = open_room(settings.workspace, settings.images, settings.testbed)
        for name in self.tasks.image_names:
            self.room.image(name)
        self.plans = open_plans(settings.tests)
        self.store = GradeStore(settings.grades_folder, slots=settings.agent.gradings)
        self.audit = Audit(settings.grades_folder / "audit", settings.agent.audit_share)
        self.references = References.read(settings.references) if settings.references else References()


@functools.cache
def open_stage(path: str) -> Stage:
    """Return the stage of a settings file."""
    return Stage(StageSettings.read(Path(path)))


@dataclass(frozen=True)
class Request:
    """Which rollout to run."""

    instance_id: str
    sample: int
    seed: int
    grade: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Request:
        """Raise UserError naming a variable that is missing or malformed."""
        try:
            return cls(
                instance_id=environment["LS_INSTANCE_ID"],
                sample=int(environment["LS_SAMPLE"]),
                seed=int(environment["LS_SEED"]),
                grade=environment["LS_GRADE"] == "1",
            )
        except (KeyError, ValueError) as error:
            raise UserError(f"the environment of a rollout lacks or garbles {error}") from None


@dataclass
class Rollout:
    """A rollout as it was run: its record, the patch it left and the conversation."""

    record: RolloutRecord
    patch: bytes = b""
    messages: list[Message] = field(default_factory=list)
    ending: Ending = Ending.FAILURE
    patch_state: PatchState = PatchState.EMPTY
    left_out: Counter[str] = field(default_factory=Counter)
    """Changed files that are not in the patch, by reason."""


class Agent:
    """Runs the rollout that the process's environment describes."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def run(self) -> None:
        """Run it and post its events; raises UserError only if these cannot be posted."""
        request = Request.from_environment(self._environment)
        stage = open_stage(self._environment[STAGE_FILE_VARIABLE])
        rollout = run_rollout(stage, request, self._model(stage, request))
        service = JsonService(self._environment.get("LS_REPORT_TOKEN", ""))
        url = self._environment["AGL_EVENT_URL"]
        data = rollout.record.to_dict()
        if not request.grade:
            data["model_patch"] = base64.b64encode(rollout.patch).decode()
        service.post(url, {"event_type": "outcome", "data": data}).json()
        if rollout.record.reward is not None:
            service.post(url, {"event_type": "reward", "data": {"value": rollout.record.reward}}).json()

    def _model(self, stage: Stage, request: Request) -> Model:
        return ChatModel(
            self._environment["AGL_OPENAI_BASE_URL"],
            self._environment.get("AGL_KEY", ""),
            model=stage.settings.model,
            seed=request.seed,
            max_tokens=stage.settings.agent.max_tokens,
            extra=stage.settings.agent.request | stage.settings.request,
        )


def run_rollout(
    stage: Stage,
    request: Request,
    model: Model,
    *,
    on_message: Callable[[Message], None] = lambda message: None,
) -> Rollout:
    """Run one rollout, grade it if asked, and write its trajectory; a machine's failure becomes `infra`.

    What was said and changed until then is kept, whatever fails.
    """
    started_s = time.monotonic()
    rollout = Rollout(_empty_record(stage, request))
    try:
        task = stage.tasks[request.instance_id]
        image = stage.room.image(task.image_name)
        rollout.record = replace(rollout.record, image_digest=image.digest)
        _converse(rollout, stage, task, image, model, on_message)
        if request.grade:
            _grade(rollout, stage, task, image)
    except UserError as error:
        _fail(rollout, str(error))
    except Exception as error:
        _fail(rollout, unforeseen(error))
    _stop_clock(rollout, started_s)
    try:
        _write_trajectory(rollout, stage)
    except OSError as error:
        _fail(rollout, f"the trajectory cannot be written: {error}")
    return rollout


def _stop_clock(rollout: Rollout, started_s: float) -> None:
    rollout.record = replace(rollout.record, wall_s=round(time.monotonic() - started_s, 3))


def _empty_record(stage: Stage, request: Request) -> RolloutRecord:
    return RolloutRecord(
        instance_id=request.instance_id,
        sample=request.sample,
        outcome=None,
        reward=None,
        resolved=None,
        turns=0,
        prompt_tokens=0,
        completion_tokens=0,
        wall_s=0.0,
        model=stage.settings.model,
        model_revision=stage.settings.model_revision,
        image_digest="",
        seed=request.seed,
    )


def _fail(rollout: Rollout, error: str) -> None:
    rollout.ending = Ending.FAILURE
    _decide(rollout, graded=False, error=error)


def _decide(
    rollout: Rollout, *, graded: bool, tests: Outcome | None = None, error: str | None = None
) -> None:
    """Write outcome and error into the record, and what follows from the outcome where it was graded."""
    outcome = decide_outcome(rollout.ending, graded=graded, patch=rollout.patch_state, tests=tests)
    reward = reward_of(outcome) if graded else None
    resolved = None if reward is None else outcome is Outcome.SOLVED
    rollout.record = replace(rollout.record, outcome=outcome, error=error, reward=reward, resolved=resolved)


def _converse(
    rollout: Rollout,
    stage: Stage,
    task: RolloutTask,
    image: Revisions,
    model: Model,
    on_message: Callable[[Message], None],
) -> None:
    """Have the conversation; afterwards the record has its figures and the rollout its patch."""
    settings = stage.settings.agent
    keep_bytes = _OUTPUT_BYTES_PER_CHARACTER * settings.observation_chars
    with (
        Scratch(stage.settings.scratch) as scratch,
        stage.room.workspace(
            image, image.start(task.instance_id), scratch / "rollout", keep_bytes=keep_bytes
        ) as workspace,
    ):
        has_workbench = functools.partial(_has_workbench, stage, task, image, scratch)
        episode = run_episode(task, workspace, model, settings, on_message=on_message)
        if episode.workbench_failed and has_workbench():
            episode.ending = Ending.LIMIT
            episode.error = f"its commands left a workbench that cannot be used: {episode.error}"
        _keep(rollout, episode)
        if _counts(rollout, settings):
            _take_patch(rollout, workspace, has_workbench)
            rollout.left_out = workspace.left_out
            named = tuple(map(encodable, workspace.in_submodules[:MAX_NAMED]))
            rollout.record = replace(rollout.record, in_submodules=named)
        elif rollout.ending is Ending.FAILURE:  # never graded: its trajectory alone has it
            with contextlib.suppress(Exception):
                rollout.patch = workspace.diff()
    if rollout.patch:
        rollout.record = replace(rollout.record, patch_sha256=hashlib.sha256(rollout.patch).hexdigest())


def _counts(rollout: Rollout, settings: AgentSettings) -> bool:
    """Return whether what the rollout leaves is its answer."""
    if rollout.ending in UNSUBMITTED:
        return settings.grade_unsubmitted
    return rollout.ending is Ending.SUBMITTED


def _has_workbench(stage: Stage, task: RolloutTask, image: Revisions, scratch: Path) -> bool:
    """Return whether a workbench that no command has touched works here and now.

    Then it was the rollout's commands that broke theirs, and a failure that they could cause is no reason to leave the
    rollout out of training.
    """
    folder = scratch / f"control-{secrets.token_hex(4)}"
    try:
        with stage.room.workspace(image, image.start(task.instance_id), folder, keep_bytes=1000) as workspace:
            done = workspace.execute("true", _CONTROL_TIMEOUT_S)
            return done.returncode == 0 and workspace.diff() == b""
    except (UserError, OSError):
        return False


def _take_patch(rollout: Rollout, workspace: Workspace, has_workbench: Callable[[], bool]) -> None:
    try:
        rollout.patch = workspace.diff()
        rollout.patch_state = PatchState.WHOLE if rollout.patch else PatchState.EMPTY
    except DiffRefusedError as error:
        rollout.patch_state = PatchState.REFUSED
        rollout.record = replace(rollout.record, error=str(error))
    except (UserError, OSError) as error:
        if not has_workbench():
            raise
        rollout.patch_state = PatchState.REFUSED
        rollout.record = replace(rollout.record, error=f"its changes cannot be read: {error}")
    except Exception as error:  # what the commands left is more than this harness can read
        rollout.patch_state = PatchState.REFUSED
        rollout.record = replace(rollout.record, error=unforeseen(error))


def _keep(rollout: Rollout, episode: Episode) -> None:
    rollout.messages, rollout.ending = episode.messages, episode.ending
    _decide(rollout, graded=False, error=episode.error)
    rollout.record = replace(
        rollout.record,
        ending=episode.ending,
        turns=episode.turns,
        prompt_tokens=episode.prompt_tokens,
        completion_tokens=episode.completion_tokens,
        max_prompt_tokens=episode.max_prompt_tokens,
        blocked=dict(episode.blocked),
        opaque=episode.opaque,
        model_s=round(episode.model_s, 3),
    )


def _grade(rollout: Rollout, stage: Stage, task: RolloutTask, image: Revisions) -> None:
    """Give the rollout its outcome and reward."""
    started_s = time.monotonic()
    tests, error = None, rollout.record.error
    if rollout.patch_state is PatchState.WHOLE:
        graded = grade(
            task,
            image,
            rollout.patch,
            stage.store,
            stage.room.sandbox,
            timeout_s=stage.settings.agent.grading_timeout_s,
            scratch=stage.settings.scratch,
            plans=stage.plans,
            grade=stage.settings.agent.grade,
            audit=stage.audit,
            references=stage.references,
        )
        tests, error = graded.outcome, graded.error or error
        if (run := graded.run) is not None:
            rollout.record = replace(
                rollout.record,
                grade=run.grade,
                checks=run.checks,
                harness_resolved=run.harness_resolved,
                hits=run.hits,
            )
    _decide(rollout, graded=True, tests=tests, error=error)
    rollout.record = replace(rollout.record, grade_s=round(time.monotonic() - started_s, 3))


def _write_trajectory(rollout: Rollout, stage: Stage) -> None:
    folder, record = stage.settings.trajectories, rollout.record
    if folder is None or not rollout.messages:
        return
    document = trajectory(
        record,
        rollout.messages,
        rollout.patch,
        stage.settings.agent,
        left_out=rollout.left_out,
        sandbox=type(stage.room.sandbox),
    )
    sha256 = write_trajectory(trajectory_path(folder, record.instance_id, record.sample), document)
    rollout.record = replace(record, trajectory_sha256=sha256)


if STAGE_FILE_VARIABLE in os.environ:
    # The controller imports this module once, before it forks a process for each rollout: these find the
    # stage open, and a stage that cannot work ends the controller at once with a sentence.
    open_stage(os.environ[STAGE_FILE_VARIABLE])
