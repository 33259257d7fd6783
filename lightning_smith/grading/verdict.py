"""What a test run proves: how far it is believed, and what it says of the task.

The log has the form that the official eval scripts print, so that swebench and SWE-smith read the same verdict from it:
`>>>>> Applied Patch`, the output between its markers, the exit status after them. The canary's lines are taken out, and
the exit status is what it would have been without its failing test. Where a run cannot be believed the canary's lines
stay, and `>>>>> Tests Errored` makes official readers refuse it.
"""

from __future__ import annotations

from dataclasses import replace

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import Grade, RolloutTask
from lightning_smith.grading.canary import Canary, Reading, official_output, official_returncode
from lightning_smith.grading.plan import TestPlan
from lightning_smith.grading.statuses import (
    END_MARK,
    PASSING,
    START_MARK,
    grader_text,
    has_unnamed_skips,
    is_counts_line,
    read_statuses,
    read_unittest,
    split_log,
)
from lightning_smith.grading.store import TestRun
from lightning_smith.sandbox.bwrap import Completed

APPLIED = ">>>>> Applied Patch"


APPLY_FAILED = ">>>>> Patch Apply Failed"


TESTS_ERRORED = ">>>>> Tests Errored"


TESTS_TIMED_OUT = ">>>>> Tests Timed Out"


EXIT_CODE = ">>>>> Test Exit Code"


def decide(task: RolloutTask, run: TestRun) -> Outcome:
    """SOLVED if every test that decides passed, TAMPERED if the run cannot be believed, else UNSOLVED.

    A test that the log does not list did not pass, nor did one that was skipped. GRADER_ERROR if the harness that
    was asked as well does not call the task solved.
    """
    if run.tampered:
        return Outcome.TAMPERED
    if not run.canary_ok or run.returncode is None or not _passed(task, run.grade, statuses_of(task, run)):
        return Outcome.UNSOLVED
    return Outcome.GRADER_ERROR if run.harness_resolved is False else Outcome.SOLVED


def disagreement(task: RolloutTask, run: TestRun) -> str | None:
    """Return what the grader and SWE-smith's harness make of one log, if that is not the same."""
    solved = claims_all(task, run)
    if run.harness_resolved is None or run.harness_resolved is solved:
        return None
    if solved:
        return (
            f"every test of {task.instance_id} passed, but SWE-smith's harness reads that not all did: it cannot grade "
            "the task, the filter `gradable` drops such ones"
        )
    return "SWE-smith's harness alone calls the task solved"


def statuses_of(task: RolloutTask, run: TestRun) -> dict[str, str]:
    """Status by test id, of those that the log names; what was not repeated has failed."""
    read = read_statuses if run.pytest else read_unittest
    return read(run.log, task.tests) | dict.fromkeys(run.unrepeated, "FAILED")


def claims_all(task: RolloutTask, run: TestRun) -> bool:
    """Return whether the run, taken by itself, solves the task."""
    return decide(task, replace(run, harness_resolved=None)) is Outcome.SOLVED


def _passed(task: RolloutTask, grade: Grade, statuses: dict[str, str]) -> bool:
    tests = task.graded(grade).tests
    return bool(tests) and all(statuses.get(test) in PASSING for test in tests)


def judge(
    task: RolloutTask, plan: TestPlan, done: Completed, canary: Canary | None, header: list[str]
) -> TestRun:
    """Turn a test run's output into a log and a verdict on its credibility.

    Tests that could not run, or that crashed, are no evidence of forging. What is: canary tests that read as they
    cannot; a whole report with passed tests, or an exit status of 0, without the canary tests, unless the report has
    skipped tests that it does not name; every test passed although the canary tests did not read right, or the exit
    status is neither 0 nor 1.
    """
    output = grader_text(done.output)
    statuses = plan.read(output.encode(), {*task.tests, *(_ids(canary) if canary else ())})
    returncode, reading = done.returncode, None
    passed = _passed(task, plan.grade, statuses)
    if canary is not None:
        reading = canary.read(statuses, returncode)
    if reading is Reading.RIGHT and canary is not None and returncode is not None:
        returncode = official_returncode(output, statuses, returncode, canary)
        output = official_output(output, canary)
    match reading:
        case None | Reading.RIGHT:
            tampered = passed and returncode not in (0, 1)
        case Reading.WRONG:
            tampered = True
        case Reading.BROKEN:
            tampered = passed
        case Reading.ABSENT:
            claims = any(statuses.get(test) in PASSING for test in task.tests)
            *_, counts = ["", *split_log(output)[1]]
            whole = is_counts_line(counts)
            unnamed = whole and has_unnamed_skips(output)
            tampered = passed or (not unnamed and (returncode == 0 or (claims and whole and returncode == 1)))
    footer = [f"{EXIT_CODE}: {returncode}"] if returncode is not None else []
    if done.stopped is not None:
        tampered = False
        footer += [TESTS_TIMED_OUT if done.timed_out else TESTS_ERRORED, f"stopped: they {done.stopped}"]
    elif canary is not None and reading is not Reading.RIGHT:
        names = f"{canary.path} {canary.passing} {canary.failing}"
        footer += [TESTS_ERRORED, f"the canary tests read {reading}: {names}"]
    elif tampered:
        footer += [TESTS_ERRORED, "the tests ended with an exit status of their own"]
    lines = [*header, f"+ : '{START_MARK}'", output.rstrip("\n"), f"+ : '{END_MARK}'", *footer, ""]
    return TestRun(
        log="\n".join(lines).encode(errors="replace"),  # names of files need not be UTF-8
        returncode=returncode,
        timed_out=done.timed_out,
        wall_s=done.wall_s,
        canary_ok=reading in (Reading.RIGHT, None) and not tampered,
        tampered=tampered,
        applied=True,
        canary="" if reading is None else reading.value,
        grade=plan.grade,
        pytest=plan.pytest,
    )


def _ids(canary: Canary) -> tuple[str, str]:
    return f"{canary.path}::{canary.passing}", f"{canary.path}::{canary.failing}"
