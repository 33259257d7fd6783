"""Settings that all rollouts of a stage share: one JSON file, named by LS_STAGE_FILE.

    StageSettings(tasks=..., images=..., ...).write(path)           # the stage
    StageSettings.read(path)                                        # its rollouts

Only `tasks`, `images`, `model` and `agent` must be there. `agent` is the section of that name of config.yaml, whole.
"""

from __future__ import annotations

from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Self

from pydantic.dataclasses import dataclass

from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.check import checked
from lightning_smith.config.values import STRICT
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_json
from lightning_smith.core.paths import TESTBED_PYTHON

STAGE_FILE_VARIABLE = "LS_STAGE_FILE"


@dataclass(frozen=True, config=STRICT)
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
        """Raise UserError, naming the file, for a missing or unknown key or a value that is not legal."""
        try:
            return checked(cls, read_json(path))
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
