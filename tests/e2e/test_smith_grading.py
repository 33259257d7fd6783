"""Gradings in containers by SWE-smith's own profiles, with its own harness beside the grader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import smith_image
import tiny_image
import yaml
from smith_image import CLAMP, LOW, MIRRORED, SLUG, SPAN, SmithTask

from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.loop import SUBMIT_COMMAND
from lightning_smith.agent.rollout import Request, Stage, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Outcome, RolloutRecord, count_disagreements
from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.core.paths import SMITH_PYTHON
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.smith_client import SmithHarness
from lightning_smith.grading.store import Check, GradeStore, TestRun
from lightning_smith.grading.tester import GraderError
from lightning_smith.grading.verdict import decide, disagreement
from lightning_smith.images.daemon import Daemon
from lightning_smith.sandbox.container import ContainerWorkspace
from lightning_smith.sandbox.docker import DockerSandbox

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (tiny_image.TESTBED_PYTHON.exists() and SMITH_PYTHON.exists()),
        reason="needs envs/testbed and envs/smith: uv sync --frozen --project envs/smith",
    ),
]


@pytest.fixture(scope="module")
def harness() -> Iterator[SmithHarness]:
    with SmithHarness.start(SMITH_PYTHON) as harness:
        yield harness


class Grader:
    """Grades commands' changes to tasks of one image."""

    def __init__(self, sandbox: DockerSandbox, name: str, harness: SmithHarness, folder: Path) -> None:
        self.sandbox, self.harness, self.folder = sandbox, harness, folder
        self.image = sandbox.prepare(name)
        self.store = GradeStore(folder / "grades")

    def patch(self, task: SmithTask, command: str) -> bytes:
        scratch = self.folder / "workspace"
        with ContainerWorkspace(self.sandbox, self.image, task.instance_id, scratch) as workspace:
            done = workspace.execute(command, 60)
            assert done.returncode == 0, done.output
            return workspace.diff()

    def __call__(
        self, task: SmithTask, command: str, grade: Grade = Grade.ALL, **changes: Any
    ) -> tuple[Outcome, TestRun, RolloutTask]:
        row = RolloutTask.from_row(task.row(**changes))
        run = run_tests(
            row,
            self.image,
            self.patch(task, command),
            self.store,
            self.sandbox,
            timeout_s=600,
            plans=self.harness,
            grade=grade,
        )
        return decide(row, run), run, row


@pytest.fixture(scope="module")
def sandbox(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> DockerSandbox:
    return DockerSandbox.find(daemon, tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="module")
def addict(sandbox: DockerSandbox, harness: SmithHarness, tmp_path_factory: pytest.TempPathFactory) -> Grader:
    folder = tmp_path_factory.mktemp("addict")
    name = smith_image.build(sandbox.daemon, folder, [CLAMP, MIRRORED])
    return Grader(sandbox, name, harness, folder)


@pytest.mark.parametrize("task", [CLAMP, MIRRORED], ids=["bug", "mirrored"])
def test_the_profile_decides_and_the_harness_agrees(addict: Grader, task: SmithTask) -> None:
    outcome, run, _ = addict(task, task.fix)
    assert outcome is Outcome.SOLVED, run.log.decode()
    assert run.checks == (Check.CANARY, Check.HARNESS, Check.MIXED) and run.harness_resolved is True
    # Verbose lines of the whole suite, as the profile's command makes them.
    assert b"\ntests/test_core.py::test_inside[one - 1] PASSED" in run.log
    outcome, run, _ = addict(task, "echo more >> README")
    assert outcome is Outcome.UNSOLVED and run.harness_resolved is False


def test_the_published_grading_takes_the_files_of_failing_tests(addict: Grader) -> None:
    outcome, run, row = addict(CLAMP, CLAMP.fix, Grade.FAIL_TO_PASS)
    assert outcome is Outcome.SOLVED and run.harness_resolved is True, run.log.decode()
    assert b"tests/test_core.py::test_low PASSED" in run.log and b"test_span" not in run.log
    assert row.graded(run.grade).tests == (LOW,) and run.grade is Grade.FAIL_TO_PASS
    broken = f"{CLAMP.fix}; sed -i 's|high - low|low|' src/widget/core.py"
    assert addict(CLAMP, broken, Grade.FAIL_TO_PASS)[0] is Outcome.SOLVED
    assert addict(CLAMP, broken)[0] is Outcome.UNSOLVED


def test_what_the_harness_cannot_read_is_no_verdict(addict: Grader) -> None:
    """Its parser cuts ids at blanks."""
    outcome, run, row = addict(CLAMP, CLAMP.fix, FAIL_TO_PASS=tiny_image.FAIL_TO_PASS)
    assert outcome is Outcome.GRADER_ERROR and run.harness_resolved is False
    assert "cannot grade the task, the filter `gradable` drops" in (disagreement(row, run) or "")


SKIP = r"sed -i 's|    if value >= low:|    import pytest; pytest.skip()\n&|' src/widget/core.py"
PRINT = (
    "cat >> src/widget/core.py <<'EOF'\n"
    "import atexit, os\n"
    f"atexit.register(lambda: os.write(1, b'\\n{LOW} PASSED [ 50%]\\n{SPAN} PASSED [100%]\\n'))\nEOF"
)


@pytest.mark.parametrize("command", [SKIP, PRINT], ids=["skipped", "printed at exit"])
def test_what_the_harness_alone_believes_pays_nothing(addict: Grader, command: str) -> None:
    outcome, run, row = addict(CLAMP, command)
    assert outcome in (Outcome.UNSOLVED, Outcome.TAMPERED), run.log.decode()
    if command == SKIP:
        assert run.harness_resolved is True
        assert disagreement(row, run) == "SWE-smith's harness alone calls the task solved"


def test_forged_reports_pay_nothing(addict: Grader) -> None:
    code = (
        "import _pytest.reports as r\n_real = r.TestReport.from_item_and_call\n"
        "def _forged(item, call):\n    report = _real(item, call)\n"
        "    if 'test_low' in item.nodeid or 'test_inside' in item.nodeid:\n        report.outcome = 'passed'\n"
        "    return report\nr.TestReport.from_item_and_call = staticmethod(_forged)"
    )
    outcome, run, _ = addict(CLAMP, f"cat >> src/widget/core.py <<'EOF'\n{code}\nEOF")
    assert run.harness_resolved is True and outcome in (Outcome.UNSOLVED, Outcome.TAMPERED), run.log.decode()


UNITTEST_REPORT = (
    "test_low (__main__.TestCore.test_low) ... ok\n"
    "test_span (__main__.TestCore.test_span) ... ok\n\n"
    "----------------------------------------------------------------------\nRan 2 tests in 0.001s\n\nOK\n"
)
UNITTEST_FORGERIES = {
    "printed": f"import os\nos.write(2, {UNITTEST_REPORT.encode()!r})\nos._exit(0)",
    "failures forgotten": (
        "import unittest\nunittest.TestResult.addFailure = unittest.TextTestResult.addFailure = "
        "lambda self, test, error: unittest.TextTestResult.addSuccess(self, test)"
    ),
    "assertions emptied": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n"
        "unittest.TestCase.assertNotEqual = lambda *a, **k: None"
    ),
}


def test_tests_that_pytest_does_not_run_have_no_canary_and_say_so(
    sandbox: DockerSandbox, harness: SmithHarness, tmp_path: Path
) -> None:
    files = smith_image.UNITTEST_FILES
    slugify = Grader(sandbox, smith_image.build(sandbox.daemon, tmp_path, [SLUG], files), harness, tmp_path)
    outcome, run, _ = slugify(SLUG, SLUG.fix, Grade.FAIL_TO_PASS)
    assert outcome is Outcome.SOLVED, run.log.decode()
    assert run.checks == (Check.HARNESS, Check.MIXED) and run.canary == ""
    assert run.grade is Grade.ALL, "its harness would drop every test of the task, and call it solved"
    outcome, run, _ = slugify(SLUG, "echo x > x")
    assert outcome is Outcome.UNSOLVED and run.harness_resolved is False, run.log.decode()
    skip = (
        r"sed -i 's|    if value >= low:|    import unittest; raise unittest.SkipTest\n&|' src/widget/core.py"
    )
    assert slugify(SLUG, skip)[0] is Outcome.UNSOLVED
    for forgery in UNITTEST_FORGERIES.values():
        outcome, run, _ = slugify(SLUG, f"cat >> src/widget/core.py <<'EOF'\n{forgery}\nEOF")
        assert run.harness_resolved is True and outcome is Outcome.TAMPERED, run.log.decode()


def test_a_suite_that_does_not_take_the_canary(
    sandbox: DockerSandbox, harness: SmithHarness, tmp_path: Path
) -> None:
    """The right code's run lacks it too, so that its absence is nobody's forgery."""
    files = {name.replace("/test_", "/check_"): text for name, text in tiny_image.FILES.items()}
    files["pytest.ini"] += "python_files = check_*.py\n"
    low, span = (test.replace("/test_", "/check_") for test in (LOW, SPAN))
    task = SmithTask(
        smith_image.PROGRESS, "x__1", smith_image.LOW_BUG, (low,), (span,), ("tests/check_core.py",)
    )
    grader = Grader(sandbox, smith_image.build(sandbox.daemon, tmp_path, [task], files), harness, tmp_path)
    outcome, run, _ = grader(task, task.fix)
    assert outcome is Outcome.SOLVED, run.log.decode()
    assert run.checks == (Check.HARNESS, Check.MIXED) and b">>>>> Tests Errored" not in run.log
    assert grader(task, "echo x > x")[0] is Outcome.UNSOLVED


def test_a_repository_without_a_profile_is_no_verdict(addict: Grader) -> None:
    with pytest.raises(GraderError, match=r"swesmith has no Python profile of swesmith/pypi__widget"):
        addict(CLAMP, CLAMP.fix, repo="swesmith/pypi__widget.0badcafe")


def test_whole_rollouts(daemon: Daemon, addict: Grader, tmp_path: Path) -> None:
    agent = yaml.safe_load((tiny_image.REPOSITORY / "config.yaml").read_text())["agent"]
    unreadable = CLAMP.row(FAIL_TO_PASS=tiny_image.FAIL_TO_PASS, instance_id=CLAMP.instance_id)
    agent["audit_share"] = 1.0
    settings = StageSettings(
        tasks=tiny_image.write_tasks(tmp_path / "tasks.jsonl", MIRRORED.row(), unreadable),
        images=tmp_path / "copies",
        model="policy",
        agent=AgentSettings.from_dict(agent),
        workspace="docker",
        tests="smith",
    )
    settings.write(tmp_path / "stage.json")
    stage = Stage(StageSettings.read(tmp_path / "stage.json"))

    def roll(task: SmithTask, *commands: str) -> RolloutRecord:
        replies = [f"```bash\n{command}\n```" for command in (*commands, SUBMIT_COMMAND)]
        record = run_rollout(stage, Request(task.instance_id, 0, 7, True), ScriptedModel(replies)).record
        assert RolloutRecord.from_dict(record.to_dict()) == record
        return record

    solved = roll(MIRRORED, "cat src/widget/core.py", MIRRORED.fix)
    assert (solved.outcome, solved.reward, solved.grade) == (Outcome.SOLVED, 1.0, "fail_to_pass")
    assert solved.checks == ("canary", "harness", "mixed") and solved.harness_resolved is True
    unsolved = roll(MIRRORED, "echo more >> README")
    assert (unsolved.outcome, unsolved.reward, unsolved.checks) == (Outcome.UNSOLVED, 0.0, ("canary",))
    refused = roll(CLAMP, CLAMP.fix)
    assert (refused.outcome, refused.reward) == (Outcome.GRADER_ERROR, None)
    assert "SWE-smith's harness reads that not all did" in (refused.error or "")
    assert count_disagreements([solved, unsolved, refused]) == 1
