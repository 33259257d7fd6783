"""Finds out what the right code of each image does with the altered tests of its tasks (`references.py`).

rows = find_references(tasks, room, plans, workers=2, timeout_s=15, scratch=folder, log=path)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import append_jsonl, cut_torn_line, read_jsonl
from lightning_smith.core.progress import Progress
from lightning_smith.grading.altered import ALTERATIONS_VERSION
from lightning_smith.grading.grader import reference_row
from lightning_smith.grading.plan import TestPlans
from lightning_smith.grading.references import ReferenceRow
from lightning_smith.grading.tester import GraderError
from lightning_smith.sandbox.rooms import Room


@dataclass(frozen=True)
class Found:
    """Rows by image, and why others have none: their right code is run when a patch needs it."""

    rows: list[ReferenceRow]
    lost: dict[str, str]


def all_tests(tasks: Sequence[RolloutTask]) -> RolloutTask:
    """One task with the tests of all tasks of an image that have any."""
    fail_to_pass = dict.fromkeys(test for task in tasks for test in task.fail_to_pass)
    others = dict.fromkeys(test for task in tasks for test in task.pass_to_pass if test not in fail_to_pass)
    first = tasks[0]
    return RolloutTask(
        first.instance_id, first.image_name, "", tuple(fail_to_pass), tuple(others), first.repo
    )


def find_references(
    tasks: Iterable[RolloutTask],
    room: Room,
    plans: TestPlans,
    *,
    workers: int,
    timeout_s: float,
    scratch: Path,
    log: Path,
) -> Found:
    """Run the right code of each image, `workers` images at a time; what `log` has already is not run again.

    Raise UserError for an image that is absent.
    """
    images: dict[str, list[RolloutTask]] = {}
    for task in tasks:
        if task.fail_to_pass:
            images.setdefault(task.image_name, []).append(task)
    known: dict[str, ReferenceRow] = {}
    if log.exists():
        cut_torn_line(log)
        for number, row in enumerate(read_jsonl(log), start=1):
            if row.get("version") == ALTERATIONS_VERSION:
                known[row["image_name"]] = ReferenceRow.from_dict(row, f"{log} row {number}")
    digests = {name: room.image(name) for name in images}  # an absent one is named before hours are spent
    rows, lost = [known[name] for name in images if name in known], dict[str, str]()
    progress = Progress("altered tests with right code", len(images), unit="images")
    for _ in rows:
        progress.skip()

    def find(name: str) -> ReferenceRow:
        return reference_row(
            all_tests(images[name]),
            digests[name],
            room.sandbox,
            timeout_s=timeout_s,
            scratch=scratch,
            plans=plans,
        )

    with ThreadPoolExecutor(workers) as pool:
        started = {pool.submit(find, name): name for name in images if name not in known}
        try:
            for future in as_completed(started):
                try:
                    rows.append(row := future.result())
                    append_jsonl(log, [row.to_dict()])
                except GraderError as error:
                    lost[started[future]] = str(error)
                progress.step()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    progress.close()
    if lost and not rows:
        name, reason = next(iter(lost.items()))
        raise UserError(f"no image's right code could be tested, such as {name}: {reason}")
    return Found(rows, lost)
