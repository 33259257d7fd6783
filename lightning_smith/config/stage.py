"""Settings that all rollouts of a stage share: one JSON file, named by LS_STAGE_FILE.

    StageSettings(tasks=..., images=..., ...).write(path)           # the stage
    StageSettings.read(path)                                        # its rollouts

Only `tasks`, `images`, `model` and `agent` must be there. `agent` is the section of that name of config.yaml.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from lightning_smith.contracts.task import Grade
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.core.paths import TESTBED_PYTHON

STAGE_FILE_VARIABLE = "LS_STAGE_FILE"

WALL_FACTOR = 4
"""Tests are bounded in processor time, so that a busy machine does not decide what a patch is worth; their wall clock
at so many times that."""

MAX_TEST_RUNS = 16
"""Of one grading: the tests, two altered runs and one that confirms, the eight variants with right code
(`grading/assignments.py`), two runs that report values (`grading/valued.py`); where the tests could not be run, once
more, and without a patch."""


@dataclass(frozen=True)
class AgentSettings:
    """Limits and wording of the agent; config.yaml says what each is and where its value comes from."""

    max_turns: int
    max_tokens: int
    observation_chars: int
    command_timeout_s: float
    rollout_timeout_s: float
    max_format_errors: int
    grading_timeout_s: float
    system_template: str
    instance_template: str
    """`{problem_statement}` stands for the task's; no other braces mean anything."""
    max_blocked: int = 20
    grade: Grade = Grade.ALL
    """Which of a task's tests decide."""
    grade_unsubmitted: bool = False
    """Whether a rollout that met a limit is graded by what it had changed until then."""
    audit_share: float = 1.0
    """0..1; of the passing patches without a hit of the scan, how many mixed runs test all the same."""
    gradings: int = 2
    """Test runs at a time on a machine."""
    thinking: bool | None = None
    """Sent as `chat_template_kwargs.enable_thinking`; None sends nothing, for endpoints that refuse the field."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """UserError for a missing or unknown key, a value of another type, or a limit that is not positive."""
        if (grade := values.get("grade", Grade.ALL)) not in tuple(Grade):
            raise UserError(f"agent.grade is {grade!r}: it must be {' or '.join(Grade)}")
        settings = _from_dict(cls, {**values, "grade": Grade(grade)}, "agent")
        for part in fields(cls):
            value = getattr(settings, part.name)
            wanted, fits = _TYPES.get(str(part.type), ("", lambda _: True))
            if not fits(value):
                raise UserError(f"agent.{part.name} is {value!r}: it must be {wanted}")
        for name, value in asdict(settings).items():
            if (
                name not in ("thinking", "grade", "grade_unsubmitted", "audit_share")
                and not name.endswith("_template")
                and not value > 0
            ):
                raise UserError(f"agent.{name} is {value}: it must be above 0")
        if not 0 <= settings.audit_share <= 1:
            raise UserError(f"agent.audit_share is {settings.audit_share}: it must be between 0 and 1")
        if "{problem_statement}" not in settings.instance_template:
            raise UserError("agent.instance_template lacks {problem_statement}: the policy would see no task")
        return settings

    def deciding(self) -> dict[str, Any]:
        """The settings that decide what a rollout leaves and what comes of it."""
        return {name: value for name, value in asdict(self).items() if name != "gradings"}

    @property
    def request(self) -> dict[str, Any]:
        """Fields of each request to the policy that follow from the settings."""
        if self.thinking is None:
            return {}
        return {"chat_template_kwargs": {"enable_thinking": self.thinking}}

    @property
    def deadline_s(self) -> int:
        """When the controller ends a rollout: what agent and grading may take, and a minute for everything else."""
        return int(self.rollout_timeout_s + MAX_TEST_RUNS * WALL_FACTOR * self.grading_timeout_s + 60)

    def instance_message(self, problem_statement: str) -> str:
        """The first message of the user: the statement, whatever it holds, in its place in the template."""
        return re.sub(r"\{problem_statement\}", lambda _: problem_statement, self.instance_template)


@dataclass(frozen=True)
class StageSettings:
    """What the rollouts of a stage need beside their own instance, sample and seed."""

    tasks: Path
    """JSON lines of SWE-smith rows."""
    images: Path
    """Folder of the local images, or where the repositories of Docker images are copied to; of a pod, the folder that
    its containers share."""
    model: str
    agent: AgentSettings
    model_revision: str = ""
    trajectories: Path | None = None
    """`<trajectories>/<instance_id>/<sample>.traj.json`; none are written if absent."""
    grades: Path | None = None
    """Store of test runs; if absent, `grades` beside the images, or in the folder of a pod."""
    references: Path | None = None
    """What right code does with altered tests (`references.py`); found out as needed if absent."""
    scratch: Path | None = None
    """Where trees go if /dev/shm has no room for them; the system's temporary folder if absent."""
    testbed_python: Path | None = None
    """Interpreter that the tests run with; that of envs/testbed if absent."""
    request: dict[str, Any] = field(default_factory=dict)
    """More fields of each request to the policy."""
    workspace: str = "bwrap"
    """Where commands and tests run: bwrap, over local images, docker, over images of a Docker daemon, or pod, in the
    containers beside the harness's own."""
    tests: str = "image"
    """Who says how a task is tested: the image itself, or smith, SWE-smith's profile of its repository, whose own
    harness then has to call a patch solved as well."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """UserError naming the file for a missing or unknown key."""
        values = dict(read_json(path))
        try:
            values["agent"] = AgentSettings.from_dict(values.get("agent") or {})
            paths = ("tasks", "images", "trajectories", "grades", "references", "scratch", "testbed_python")
            values |= {name: Path(values[name]) for name in paths if values.get(name)}
            return _from_dict(cls, values, "stage")
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        write_json(
            path, {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        )

    @property
    def grades_folder(self) -> Path:
        return self.grades or (self.images if self.workspace == "pod" else self.images.parent) / "grades"

    @property
    def testbed(self) -> Path:
        return self.testbed_python or TESTBED_PYTHON


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "float": ("a number", _is_number),
    "str": ("text", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "bool | None": ("true, false or null", lambda value: value is None or isinstance(value, bool)),
}
"""What a setting of each type must be, in words and as a check; without it a wrong one fails rollouts later."""


def _from_dict[T](kind: type[T], values: Mapping[str, Any], name: str) -> T:
    known = {part.name: part for part in fields(kind)}  # pyright: ignore[reportArgumentType]
    if unknown := sorted(set(values) - set(known)):
        raise UserError(
            f"{name} settings have an unknown key {unknown[0]!r}: the keys are {', '.join(known)}"
        )
    try:
        return kind(**values)
    except TypeError as error:
        raise UserError(f"{name} settings are incomplete ({error})") from None
