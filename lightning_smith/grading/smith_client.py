"""SWE-smith's own harness, asked how tasks are tested and whether they are solved.

    with SmithHarness.start(python) as harness:
        plan = harness.plan(task, image, Grade.ALL)
        harness.resolved(task, plan, log)

It needs an environment of its own (envs/smith) and seconds to import, so one process of it answers all rollouts of a
stage. It listens on a socket without a name in any folder; processes forked later ask through it as well. It ends
with the last process that could ask.

Its verdict alone pays nothing, for it has faults: tests that were skipped are no failures, a task all of whose
tests were filtered away is solved, ids with blanks are cut, and whatever the tests print is believed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.entry_points import SMITH_HARNESS
from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.grading.log_lines import PYTEST_FORMS
from lightning_smith.grading.plan import PROFILE_OPTIONS, TestPlan, with_names
from lightning_smith.repositories.revisions import Revisions

_ANSWER_S = 300.0
_REMEDY = "uv sync --frozen --project envs/smith"


@dataclass(frozen=True)
class SmithHarness:
    """TestPlans of SWE-smith's profiles."""

    address: bytes
    process: subprocess.Popen[bytes]
    versions: str = ""

    @classmethod
    def start(cls, python: Path) -> Self:
        """Start it with an interpreter of envs/smith. Raise UserError if it does not answer."""
        if not python.exists():
            raise UserError(f"SWE-smith's harness is not installed at {python}: run `{_REMEDY}`")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind("")  # the kernel chooses a free name outside of the file system
            listener.listen(128)
            process = subprocess.Popen(
                [str(python), "-m", SMITH_HARNESS, str(listener.fileno())],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
                pass_fds=[listener.fileno()],
            )
            harness = cls(listener.getsockname(), process)
        try:
            versions = harness._ask({"op": "versions"})
        except BaseException:
            harness.close()
            raise
        return replace(harness, versions=" ".join(f"{name} {value}" for name, value in versions.items()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()

    def plan(self, task: RolloutTask, image: Revisions, grade: Grade) -> TestPlan:
        """Return how the harness would run the task's tests. Raise UserError if it has no profile of the repository
        in Python.

        Where the profile does not run pytest, the harness itself cannot narrow the suite: all tests decide.
        """
        answer = self._ask(
            {"op": "plan", "instance": _instance(task), "fail_to_pass": grade is Grade.FAIL_TO_PASS}
        )
        forms = answer["line_forms"]
        if not forms:
            raise UserError(f"the parser of {task.repo} in swesmith reads no known form of lines")
        if not PYTEST_FORMS.issuperset(forms):
            if grade is not Grade.ALL:
                return self.plan(task, image, Grade.ALL)
            command, paths = answer["command"], answer["paths"]
        else:
            names = with_names(answer["command"], task.graded(grade).tests, task.repo)
            command, paths = " ".join([names, *PROFILE_OPTIONS]), answer["paths"]
        return TestPlan(
            command,
            tuple(dict.fromkeys(paths)),
            tuple(answer["test_files"]),
            pytest=PYTEST_FORMS.issuperset(forms),
            grade=grade,
            timeout_s=answer["timeout_s"],
            harness=self.versions,
        )

    def resolved(self, task: RolloutTask, plan: TestPlan, log: bytes) -> bool:
        """Return what `swesmith.harness.grading.get_eval_report` says of a log."""
        answer = self._ask(
            {
                "op": "report",
                "instance": _instance(task),
                "log": log.decode("utf-8", "replace"),
                "fail_to_pass": plan.grade is Grade.FAIL_TO_PASS,
            }
        )
        return bool(answer["resolved"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ANSWER_S)
                connection.connect(self.address)
                with connection.makefile("rwb") as stream:
                    stream.write(json.dumps(question).encode() + b"\n")
                    stream.flush()
                    line = stream.readline()
        except OSError as error:
            raise UserError(f"SWE-smith's harness does not answer ({error}): run the stage again") from None
        if not line:
            raise UserError(f"SWE-smith's harness ended, see its message in the log: run `{_REMEDY}`")
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"SWE-smith's harness: {answer['error']}")
        return answer


def _instance(task: RolloutTask) -> dict[str, Any]:
    return {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "image_name": task.image_name,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
    }
