"""What a policy does to its workbench, patch or words is its own failure: reward 0, and never left out of training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import tiny_image

from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.loop import SUBMIT_COMMAND
from lightning_smith.agent.rollout import Request, Rollout, Stage, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.files import dump_json
from lightning_smith.grading import grader as grading
from lightning_smith.grading.store import TestRun
from lightning_smith.grading.tester import GraderError
from lightning_smith.sandbox.bwrap import SandboxError
from lightning_smith.sandbox.workspace import Observation, Workspace
from lightning_smith.training.advantages import group_advantages

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

AGENT: dict[str, Any] = {
    **tiny_image.AGENT,
    "command_timeout_s": 30,
    "rollout_timeout_s": 120,
    "grading_timeout_s": 3,
    "grade_unsubmitted": True,
    "audit_share": 0.0,
}
OPEN_MANY = "python3 -c 'import os\nfor i in range(30000): open(str(i), \"w\").close()'"
AS_TESTS_RUN = """cat >> src/widget/core.py <<'EOF'
import os
if os.path.exists('/testbed/tests/test_core.py'):
    {}
EOF"""
FAILURES = {
    "deep folders": "d=$(printf 'n%.0s' {1..200}); for i in {1..30}; do mkdir $d && cd $d || break; done; echo > x.py",
    "name of no UTF-8 where tests are": "mkdir -p tests; echo > $'tests/\\xff.py'; echo > $'tests/\\xffest_core.py'",
    "name of no UTF-8 of a file with a hit": "echo 'import gc' > src/$'\\xff.py'",
    "name of no UTF-8 for pytest": "mkdir $'\\xff'; echo > $'\\xff/conftest.py'",
    "a thousand wrappers": "env " * 1000 + "true",
    "brackets without end": "$(" * 3000 + "true" + ")" * 3000,
    "a surrogate in what is refused": "git \udc80",
    "no rights": "chmod -R 000 /testbed; chmod 000 / /testbed",
    "a link instead of the tree": "cd /; rm -rf /testbed/* /testbed/.[a-z]*; rm -rf /testbed; ln -s /proc /testbed",
    "too many files": f"d=$(printf 'n%.0s' {{1..200}}); mkdir $d && cd $d && {OPEN_MANY}",
    "a full disk where tests run": AS_TESTS_RUN.format("f = open('x', 'wb')\n    while f.write(bytes(2**20)): pass"),
    "sleeping where tests run": AS_TESTS_RUN.format("import time; time.sleep(10_000)"),
    "no memory where tests run": AS_TESTS_RUN.format("x = []\n    while True: x.append(bytearray(2**26))"),
    "killing all where tests run": AS_TESTS_RUN.format("os.kill(-1, 9)"),
    "no text": "printf 'a\\0b' > src/widget/core.py",
}  # fmt: skip


FAILED_AND_OTHERS = group_advantages([0.0, 1.0, 1.0, 0.0])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("own")
    tiny_image.build(folder / "images")
    return Stage(
        StageSettings(
            tasks=tiny_image.write_tasks(folder / "tasks.jsonl", tiny_image.row()),
            images=folder / "images",
            model="policy",
            agent=AgentSettings.from_dict(AGENT),
        )
    )


def roll_out(stage: Stage, *commands: str) -> Rollout:
    replies = [f"```bash\n{command}\n```" for command in (*commands, SUBMIT_COMMAND)]
    return run_rollout(stage, Request(tiny_image.TASK, 0, 7, True), ScriptedModel(replies))


@pytest.mark.parametrize("command", FAILURES.values(), ids=list(FAILURES))
def test_the_reward_is_that_of_a_failure(
    stage: Stage, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record = roll_out(stage, command).record
    assert record.valid and record.reward == 0.0, (record.outcome, record.error)
    assert record.outcome in (Outcome.UNSOLVED, Outcome.FORMAT_ERROR)
    assert group_advantages([record.reward, 1.0, 1.0, 0.0]) == FAILED_AND_OTHERS
    assert RolloutRecord.from_dict(json.loads(dump_json(record.to_dict()).encode())) == record
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", [name for name in FAILURES if "UTF-8" in name])
def test_a_right_patch_beside_them_is_solved(stage: Stage, name: str) -> None:
    assert roll_out(stage, tiny_image.FIX, FAILURES[name]).record.outcome is Outcome.SOLVED


@dataclass
class Breaking:
    """A workspace that cannot be used once a command has broken it; `everywhere`: nor any other one from then on."""

    inner: Workspace
    broken: list[str]
    everywhere: bool
    mine: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _check(self) -> None:
        if self.mine or (self.everywhere and self.broken):
            raise SandboxError("the workbench did not answer in time")

    def execute(self, command: str, timeout_s: float) -> Observation:
        self._check()
        if command in ("break", "break the diff"):
            self.mine = True
            self.broken.append(command)
            if command == "break":
                self._check()
            return Observation(b"", 0, False)
        return self.inner.execute(command, timeout_s)

    def diff(self) -> bytes:
        self._check()
        return self.inner.diff()


@pytest.mark.parametrize("command", ["break", "break the diff"])
@pytest.mark.parametrize("everywhere", [False, True], ids=["its own", "every"])
def test_a_workbench_that_breaks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, everywhere: bool
) -> None:
    """Its own alone is the doing of its commands; if a fresh one does not work either, the machine's."""
    broken: list[str] = []
    real = stage.room.workspace

    @contextmanager
    def workspace(*args: Any, **options: Any) -> Iterator[Breaking]:
        with real(*args, **options) as inner:
            yield Breaking(inner, broken, everywhere)

    monkeypatch.setattr(stage, "room", _Room(stage.room, workspace))
    record = roll_out(stage, command).record
    if everywhere:
        assert (record.outcome, record.reward) == (Outcome.INFRA, None)
    else:
        ended = Outcome.AGENT_LIMIT if command == "break" else Outcome.UNSOLVED
        assert (record.outcome, record.reward) == (ended, 0.0)
    assert record.error is not None and "did not answer in time" in record.error


@dataclass
class _Room:
    inner: Any
    workspace: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize(
    ("fails", "outcome"),
    [
        (lambda patch, calls: b"poison" in patch, Outcome.UNSOLVED),
        (lambda patch, calls: b"poison" in patch and calls == 1, Outcome.SOLVED),
        (lambda patch, calls: True, Outcome.GRADER_ERROR),
    ],
    ids=["this patch", "once", "every patch"],
)
def test_a_grading_that_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fails: Any, outcome: Outcome
) -> None:
    """Twice with a patch and not without it is the patch's doing; without it as well, the machine's."""
    real, calls = grading.run_tests, []

    def run_tests(task: Any, image: Any, patch: bytes, *args: Any, **options: Any) -> TestRun:
        calls.append(patch)
        if fails(patch, len(calls)):
            raise GraderError("no container can be had")
        return real(task, image, patch, *args, **options)

    monkeypatch.setattr(grading, "run_tests", run_tests)
    record = roll_out(stage, tiny_image.FIX, "echo poison > notes.txt").record
    assert record.outcome is outcome, record.error
    assert record.reward == {Outcome.SOLVED: 1.0, Outcome.UNSOLVED: 0.0}.get(outcome)
    if outcome is not Outcome.SOLVED:
        assert record.error is not None and record.error.endswith("no container can be had")


def test_the_deadline_covers_every_test_run() -> None:
    settings = AgentSettings.from_dict(AGENT)
    assert settings.deadline_s == 120 + 16 * 4 * 3 + 60
